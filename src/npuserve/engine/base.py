"""The Engine seam: requests in, events out, whatever decides what runs when."""

from typing import Protocol

from npuserve.core import CacheSource, Request
from npuserve.engine.stats import EngineStats


class AnyEngine(Protocol):
    """What the server asks of an engine; see `Engine` for the contract of each method."""

    @property
    def failed(self) -> bool: ...

    @property
    def healthy(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self, grace_s: float = 0.0) -> bool: ...

    def submit(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def cancel_all(self) -> int: ...

    def forget_contexts(self, tier: CacheSource | None = None) -> bool: ...

    def stats(self) -> EngineStats: ...
