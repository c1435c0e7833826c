"""Declares the two operators that a torchvision without its compiled part looks up while it is imported.

A .pth file imports this in every process of the virtual environment; torch itself is imported only with torchvision.
"""

import sys


class _BeforeTorchvision:
    """A finder that finds nothing: it only notices the first import of torchvision."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules[__name__].library = library  # operators live as long as their library


sys.meta_path.insert(0, _BeforeTorchvision())
