"""The run table's way in: cells to numbers, layouts of others, every problem with its place."""
