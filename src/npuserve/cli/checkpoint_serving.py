"""A checkpoint on a device of the common engine, with the store of its contexts: what both serve commands can run."""

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from npuserve.checkpoints.catalog import entry_of_checkpoint
from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.config import ServeSettings
from npuserve.devices.base import Device
from npuserve.engine.engine import Engine
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore, open_context_store
from npuserve.server.event_router import EventRouter
from npuserve.server.served_model import served_model
from npuserve.server.state import ServedModel

_GB = 1 << 30


@dataclass(frozen=True, slots=True)
class ServedCheckpoint:
    """A model ready to serve, and what is behind it."""

    model: ServedModel
    engine: Engine
    device: Device
    store: ContextStore | None

    def close(self) -> None:
        """Stop the engine, then release what it worked with; a device that hangs is left alone."""
        stopped = self.engine.stop()
        if self.store is not None:
            self.store.close()
        if stopped:
            self.device.close()


def load_checkpoint(
    settings: ServeSettings,
    checkpoint: Checkpoint,
    name: str,
    router: EventRouter,
    open_device: Callable[[ServeSettings, Checkpoint], Device],
) -> ServedCheckpoint:
    """Device and tokenizer side by side: both take a noticeable part of a second."""
    opening = _in_background(lambda: open_device(settings, checkpoint))
    tokenizer = checkpoint.tokenizer()
    device = opening.result()
    entry = entry_of_checkpoint(settings.model, checkpoint.path)
    model = served_model(
        checkpoint,
        tokenizer,
        device.capabilities,
        name=name,
        think=settings.think,
        splits_reasoning=settings.reasoning_parser is not None,
        chat_template=entry.chat_template if entry else None,
    )
    schedule = EngineSettings(
        num_slots=settings.slots,
        chunk_size=settings.chunked_prefill_size,
        mixed=settings.mixed,
        max_queue=settings.max_queue,
        max_running=settings.max_running,
        quantum=settings.quantum,
    )
    store = _open_store(settings, checkpoint, device)
    return ServedCheckpoint(model, Engine(device, schedule, router.deliver, store=store), device, store)


def open_isa(command: str, settings: ServeSettings, checkpoint: Checkpoint) -> Device:
    """The instruction-set simulator with `checkpoint` loaded; what is to be told is told under the command's name."""
    from npuserve.cli.build_progress import BuildProgress
    from npuserve.cli.chosen_formats import chosen_formats
    from npuserve.cli.exit_status import tell
    from npuserve.devices.isa import IsaSettings, open_isa_device

    wanted = IsaSettings(
        num_slots=settings.slots,
        context_length=settings.cap,
        num_threads=settings.threads,
        formats=chosen_formats(settings.model, settings.wformat, settings.head_format, os.environ),
    )
    return open_isa_device(checkpoint, wanted, lambda: BuildProgress(command), lambda line: tell(command, line))


def _open_store(settings: ServeSettings, checkpoint: Checkpoint, device: Device) -> ContextStore | None:
    from npuserve.program.image import image_key

    can = device.capabilities
    room = KvSettings(int(settings.kv_ram_gb * _GB), int(settings.kv_disk_gb * _GB), Path(settings.kv_dir))
    return open_context_store(room, image_key(checkpoint), can.page_format, can.page_bytes)


def _in_background(work: Callable[[], Device]) -> "Future[Device]":
    """`work` in a thread that does not outlive an interrupt, as an executor's would."""
    future: Future[Device] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="open-device", daemon=True).start()
    return future
