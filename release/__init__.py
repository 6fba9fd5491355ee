"""What is published: built, tried in an empty environment, and checked for what is not ready."""
