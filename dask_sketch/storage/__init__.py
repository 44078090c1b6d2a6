"""Store and open artifacts."""
