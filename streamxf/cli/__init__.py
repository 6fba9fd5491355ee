"""Commands. Each needs the extra ``cli``."""
