"""Items of a load, read into the planner's targets."""
