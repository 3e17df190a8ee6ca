"""The contextual loss.

`variants` has the definition as in the paper, for the variants that need autograd; `matrix_form` has value and gradient
of the standard definition as products of matrices, which `dense` and `sparse` compute.
"""
