"""One small script for each item of `dpzv reproduce`: it reads run records, draws a figure and tells a table."""
