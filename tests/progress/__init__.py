"""How far saves, loads, verify and salvage are, and the bar that shows it."""
