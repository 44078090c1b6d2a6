"""Every supported input as lazy samples: arrays, tables, stores and bags."""
