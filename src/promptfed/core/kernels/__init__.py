"""Convolutions of a stack of clients, the GPU kernels behind them, and which chips can run those."""
