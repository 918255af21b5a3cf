"""The engine of a server that has no language model."""

from npuserve.core import CacheSource, Request
from npuserve.engine.stats import EngineStats
from npuserve.errors import OverloadedError


class IdleEngine:
    """See `AnyEngine`: takes nothing, so nothing ever runs."""

    failed = False
    healthy = True

    def start(self) -> None: ...

    def stop(self, grace_s: float = 0.0) -> bool:
        return True

    def submit(self, request: Request) -> None:
        """Raises OverloadedError."""
        raise OverloadedError("no language model is loaded here", code="model_not_loaded")

    def cancel(self, request_id: str) -> None: ...

    def cancel_all(self) -> int:
        return 0

    def forget_contexts(self, tier: CacheSource | None = None) -> bool:
        return True

    def stats(self) -> EngineStats:
        return EngineStats()
