"""kiln-serve's language model: an .rkllm on the NPU, or a checkpoint on the simulator where that was asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.tokenizer_folder import TOKENIZER_FILE, TokenizerFolder
from npuserve.cli.checkpoint_serving import load_checkpoint, open_isa
from npuserve.cli.kiln_models import model_name
from npuserve.cli.kiln_settings import KilnSettings
from npuserve.devices.rkllm import RkllmRuntime, RkllmSettings
from npuserve.devices.rkllm_logits import RkllmLogitsDevice
from npuserve.drivers.rkllm import RunSampling
from npuserve.engine.base import AnyEngine
from npuserve.engine.engine import Engine
from npuserve.engine.runtime_engine import RuntimeEngine
from npuserve.engine.settings import EngineSettings
from npuserve.errors import ConfigError
from npuserve.home import expanded
from npuserve.server.event_router import EventRouter
from npuserve.server.kiln_routes import routes_without_tokenizer
from npuserve.server.runtime_model import RuntimeModelFacts, runtime_model
from npuserve.server.sampling import SamplingDefaults
from npuserve.server.state import Handler, ServedModel
from npuserve.text.prompt_family import prompt_family
from npuserve.text.system_prompt import with_system_prompt


@dataclass(frozen=True, slots=True)
class Language:
    """A loaded language model; `close` releases the device once the engine has stopped."""

    model: ServedModel
    engine: AnyEngine
    path: Path
    backend: str
    close: Callable[[], None]
    notes: tuple[str, ...] = ()
    routes: Mapping[str, Mapping[str, Handler]] = field(default_factory=dict)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` asks for the simulator: a .gguf file or a folder."""
    return path.suffix.lower() == ".gguf" or path.is_dir()


def load_language(settings: KilnSettings, path: Path, router: EventRouter) -> Language:
    """Load `path`. Raises CheckpointError, ConfigError, DeviceUnavailableError."""
    if is_checkpoint(path):
        return _load_checkpoint(settings, path, router)
    if settings.sampling == "host":
        return _load_logits(settings, path, router)
    return _load_rkllm(settings, path, router)


def _load_rkllm(settings: KilnSettings, path: Path, router: EventRouter) -> Language:
    """Whole replies from the runtime."""
    folder = find_tokenizer(settings, path)
    family = prompt_family(path.name, settings.family)
    model, texts = runtime_model(_facts(settings, path), family, folder)
    runtime = RkllmRuntime(rkllm_settings(settings, path))
    engine = RuntimeEngine(runtime, texts, router.deliver, max_queue=settings.common.max_queue)
    notes = [f"runtime layout {runtime.layout}"]
    notes += [f"tokenizer and template from {folder.path}" if folder else f"prompt format {family.name}"]
    if not runtime.capabilities.honours_sampling:
        notes += ["this runtime ignores the sampling values of requests; [llm] sampling = host honours them"]
    routes = {} if folder else routes_without_tokenizer()
    return Language(model, engine, path, "rkllm", runtime.close, tuple(notes), routes)


def _load_logits(settings: KilnSettings, path: Path, router: EventRouter) -> Language:
    """Logits from the runtime, one run a token; the common engine samples."""
    folder = find_tokenizer(settings, path)
    if folder is None:
        raise ConfigError(
            f"[llm] sampling = host needs the model's tokenizer; put its {TOKENIZER_FILE} beside {path} or set"
            " [llm] tokenizer"
        )
    family = prompt_family(path.name, settings.family)
    device = RkllmLogitsDevice(rkllm_settings(settings, path))
    model, _ = runtime_model(_facts(settings, path), family, folder)
    model = replace(model, vocab_size=device.capabilities.vocab_size)
    schedule = EngineSettings(
        num_slots=1, chunk_size=device.capabilities.max_rows, max_queue=settings.common.max_queue, max_running=1
    )
    notes = (f"tokenizer and template from {folder.path}", "tokens are chosen by this server")
    return Language(model, Engine(device, schedule, router.deliver), path, "rkllm", device.close, notes)


def _load_checkpoint(settings: KilnSettings, path: Path, router: EventRouter) -> Language:
    """The instruction-set simulator, with the checkpoint's own sampling defaults."""
    common = replace(settings.common, model=str(path), cap=settings.max_context_len, backend="isa")
    checkpoint = open_checkpoint(path)
    name = common.served_model_name or (path.resolve().name if path.is_dir() else checkpoint.name)
    served = load_checkpoint(common, checkpoint, name, router, partial(open_isa, "kiln-serve"))
    model = replace(served.model, defaults=replace(served.model.defaults, max_tokens=settings.max_new_tokens))
    if settings.system_prompt:
        model = replace(model, template=with_system_prompt(model.template, settings.system_prompt))
    return Language(model, served.engine, path, "isa", served.close, ("on the instruction-set simulator",))


def _facts(settings: KilnSettings, path: Path) -> RuntimeModelFacts:
    return RuntimeModelFacts(
        name=settings.common.served_model_name or model_name(path),
        context_length=settings.max_context_len,
        defaults=sampling_defaults(settings),
        system_prompt=settings.system_prompt,
        think=settings.common.think,
        splits_reasoning=settings.common.reasoning_parser is not None,
        samples_here=settings.sampling == "host",
    )


def find_tokenizer(settings: KilnSettings, path: Path) -> TokenizerFolder | None:
    """The configured tokenizer, else the one beside the model. Raises CheckpointError when a file is missing."""
    if settings.tokenizer is not None:
        chosen = expanded(settings.tokenizer)
        return TokenizerFolder(chosen if chosen.is_dir() else chosen.parent)
    return TokenizerFolder(path.parent) if (path.parent / TOKENIZER_FILE).is_file() else None


def sampling_defaults(settings: KilnSettings) -> SamplingDefaults:
    """What holds where a request says nothing."""
    return SamplingDefaults(
        temperature=settings.temperature,
        top_k=min(settings.top_k, 64),
        top_p=settings.top_p,
        repetition_penalty=settings.repeat_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        max_tokens=settings.max_new_tokens,
    )


def rkllm_settings(settings: KilnSettings, path: Path) -> RkllmSettings:
    sampling = RunSampling(
        top_k=settings.top_k,
        top_p=settings.top_p,
        temperature=settings.temperature,
        repeat_penalty=settings.repeat_penalty,
        frequency_penalty=settings.frequency_penalty,
        presence_penalty=settings.presence_penalty,
    )
    return RkllmSettings(
        model=path,
        library=settings.library,
        layout=settings.runtime,
        context_length=settings.max_context_len,
        sampling=sampling,
        n_keep=settings.n_keep,
        embed_flash=settings.embed_flash,
    )
