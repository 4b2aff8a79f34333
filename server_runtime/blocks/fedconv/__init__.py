"""The maths of FedConv alone: weights as images, kernels over them, clusters at edges."""
