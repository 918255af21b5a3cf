"""Every error that npuserve raises on purpose, in one tree.

NpuserveError
├── ConfigError                 a flag, environment variable or file key is wrong
├── AddressError                the address cannot be listened on
├── CheckpointError             a model's files are missing, damaged or hostile
│   ├── UnsupportedModelError   a sound checkpoint of a kind we do not serve
│   └── DownloadError           a checkpoint could not be fetched
├── EncodingError               an instruction's field does not fit its bits
├── ProgramError                a program does not fit the machine it is built for
├── MachineFault                an instruction broke a rule while it ran
├── DeviceError                 the accelerator failed
│   └── DeviceUnavailableError  it cannot be opened at all
├── PageStoreError              saved contexts cannot be read or written; serving goes on without
├── RequestError                the client's request is wrong (400)
│   └── ContextLengthError      prompt longer than the context
└── OverloadedError             the queue is full or the server is stopping (503)

A message names the value, the limit and the remedy, in one line; the command line prints it as it is.
"""


class NpuserveError(Exception):
    """Base of all errors below; catching it catches everything that is not a bug."""


class ConfigError(NpuserveError):
    """A setting has an unknown name or a value out of its range."""


class AddressError(NpuserveError):
    """The server cannot listen where it was told to."""


class CheckpointError(NpuserveError):
    """A checkpoint's files are missing, truncated, inconsistent or hostile."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is sound, but its family, size or format is not served here."""


class DownloadError(CheckpointError):
    """A checkpoint could not be fetched or failed its checksum; nothing half-written was left."""


class EncodingError(NpuserveError):
    """An instruction's operand does not fit the field that holds it."""


class ProgramError(NpuserveError):
    """A program needs more rows, memory or instructions than the machine has."""


class MachineFault(NpuserveError):  # noqa: N818 - the hardware's own word
    """An instruction broke a rule of the machine; the message holds its address and text.

    `pc` is the instruction's index in the program, or None where no program was running.
    """

    def __init__(self, reason: str, *, pc: int | None = None, instruction: str = "") -> None:
        super().__init__(reason if pc is None else f"{reason} (pc {pc}: {instruction or 'past the end'})")
        self.pc = pc
        self.instruction = instruction


class DeviceError(NpuserveError):
    """The accelerator stopped with an error or returned what cannot be."""


class DeviceUnavailableError(DeviceError):
    """The accelerator, its driver or the native simulator is not there."""


class PageStoreError(NpuserveError):
    """A tier of saved contexts cannot be opened, read or written."""


class RequestError(NpuserveError):
    """A request that no retry will mend.

    `param` is the path of the offending field (`messages[2].role`), `code` a stable machine-readable word.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """The prompt does not fit the context."""

    def __init__(self, num_prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"the prompt has {num_prompt_tokens} tokens, but the context holds {context_length} and at least one is"
            " needed for the reply; shorten the prompt or start the server with a larger --cap",
            code="context_length_exceeded",
        )


class OverloadedError(NpuserveError):
    """The request cannot be taken now; `retry_after_s` says when to ask again."""

    def __init__(self, message: str, *, retry_after_s: int = 1, code: str = "server_overloaded") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code
