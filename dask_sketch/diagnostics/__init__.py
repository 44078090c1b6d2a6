"""How well a mixture was found: numbers, pictures and a report."""
