"""Computed step metrics pushed into other people's dashboards: TensorBoard, Weights & Biases, trackio.

`settings` says where to, `targets` opens it, `pushing` logs what is not there yet.
"""
