"""torch, for every module of the package: where it is not installed, using it raises an error that names the extra."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hicache.errors import MissingTorchError

__all__ = ["CPU", "HAS_TORCH", "FileStore", "OutOfMemoryError", "PrefixStore", "Store", "distributed", "require_torch"]
__all__ += ["torch"]


def require_torch(user: str) -> None:
    """Raise MissingTorchError, which names the extra, where torch is not installed. `user`: what needs it."""
    if not HAS_TORCH:
        raise MissingTorchError.of(user)


class _NotInstalled:
    """Stands for a module or a class of torch."""

    def __getattr__(self, name: str) -> Any:
        # inspect and pytest ask every object for such names.
        if name.startswith("__"):
            raise AttributeError(name)
        require_torch("this part of hicache")

    def __call__(self, *_: Any, **__: Any) -> Any:
        require_torch("this part of hicache")


if TYPE_CHECKING:
    import torch
    from torch import OutOfMemoryError, distributed
    from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

    HAS_TORCH: bool
    CPU: torch.device
else:
    try:
        import torch
        from torch import OutOfMemoryError, distributed

        HAS_TORCH, CPU = True, torch.device("cpu")
        # Some builds of torch have no ranks.
        FileStore, PrefixStore, Store = (getattr(distributed, f"{kind}Store", None) for kind in ("File", "Prefix", ""))
    except ModuleNotFoundError as error:
        # A torch that is installed and lacks a library of its own says so itself.
        if error.name != "torch":
            raise
        HAS_TORCH, CPU, OutOfMemoryError = False, SimpleNamespace(type="cpu", index=None), MemoryError
        torch = distributed = FileStore = PrefixStore = Store = _NotInstalled()
