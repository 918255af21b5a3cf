"""npuserve: an OpenAI-compatible server for one language model on one small accelerator."""

from importlib.metadata import version

__version__ = version("npuserve")
