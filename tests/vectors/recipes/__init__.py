"""What the vectors hold and how each of them is made, subject by subject."""
