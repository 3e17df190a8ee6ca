"""Noise and limited data on purpose, to measure how robust a method is.

Each kind is a function from table to table. It alters the split `train`, or all rows of a table without splits. The
result depends on the rows and a seed only. With a larger fraction, the rows altered with a smaller one are altered in
the same way, and further rows too. Columns record which rows are altered and what their labels were.
"""
