"""Which weights are kept in which format: plans made of options and mix strings, and what they do to a model's facts.

A mix string is `kind=format` or `kind@a-b=format` with commas between, a to b being layer numbers, such as
`head=fp4,down@0-23=fp4`. A rule with a range beats one without; among equals the first one wins. What no rule names is
in the plan's base format. Source: the public openTPU weight formats.
"""

import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby

from npuserve.errors import ConfigError
from npuserve.models.facts import LayerFacts, LayerFormats, ModelFacts
from npuserve.models.stored_formats import NOTHING_STORED, StoredFormats, StoredLayer
from npuserve.quant.formats import INT8, WeightFormat, weight_format

HEAD, INPUTS = "head", "ple"
GATE_UP, DOWN = ("gateup", "mlp"), ("down", "mlp")
RULE = re.compile(r"(?P<kind>[a-z]+)(@(?P<first>\d+)-(?P<last>\d+))?=(?P<format>\w+)")


@dataclass(frozen=True, slots=True)
class FormatRule:
    """One rule of a mix string; `layers` is None for all of them."""

    kind: str
    layers: range | None
    format: WeightFormat
    text: str


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """A format for every matrix of a model. `head` None leaves the LM head to the rules.

    With `keeps`, what a checkpoint has in 4 bits stays as it is, and the rules are for the rest.
    """

    base: WeightFormat = INT8
    rules: tuple[FormatRule, ...] = ()
    head: WeightFormat | None = None
    keeps: bool = False

    def of_layer(self, layer: int, facts: LayerFacts, stored: StoredFormats = NOTHING_STORED) -> LayerFormats:
        """The formats of layer number `layer`, which is of the kind that `facts` describe."""
        own = stored.layers[layer] if self.keeps and stored.layers else StoredLayer()
        return LayerFormats(
            mixer=own.mixer or self._choose((facts.mixer,), layer),
            gate_up=own.gate_up or self._choose(GATE_UP, layer),
            down=own.down or self._choose(DOWN, layer),
            inputs=own.inputs or self._choose((INPUTS,), layer) if facts.input_size else own.mixer or self.base,
        )

    def of_head(self, stored: StoredFormats = NOTHING_STORED) -> WeightFormat:
        return self.head or (stored.head if self.keeps else None) or self._choose((HEAD,), None)

    def _choose(self, kinds: tuple[str, ...], layer: int | None) -> WeightFormat:
        fitting = [rule for rule in self.rules if rule.kind in kinds]
        ranged = [rule for rule in fitting if rule.layers is not None and layer in rule.layers]
        anywhere = [rule for rule in fitting if rule.layers is None]
        return next((rule.format for rule in ranged + anywhere), self.base)


def format_plan(wformat: str, head_format: str | None, mix: str, *, keeps: bool = True) -> FormatPlan:
    """The plan of the two options; `mix` is the string recommended for the model, empty where there is none.

    auto is mix where there is a string, else int8, and with `keeps` leaves as it is what a checkpoint has in 4 bits;
    mix is int8 with the string's rules. The head follows them unless `head_format` says otherwise. Raises ConfigError
    for an unknown format, a bad string, and mix without one.
    """
    head = weight_format(head_format) if head_format else None
    keeps = keeps and wformat == "auto"
    if wformat == "auto":
        wformat = "mix" if mix else INT8.name
    if wformat != "mix":
        return FormatPlan(weight_format(wformat), head=head, keeps=keeps)
    if not mix:
        raise ConfigError("no mix of formats is recommended for this model; choose one format, or set OTPU_FORMATS")
    return FormatPlan(INT8, parse_mix(mix), head, keeps)


def parse_mix(text: str) -> tuple[FormatRule, ...]:
    """The rules of a mix string; ConfigError names the part that is wrong."""
    return tuple(_parse_rule(part.strip()) for part in text.split(","))


def _parse_rule(text: str) -> FormatRule:
    if not (found := RULE.fullmatch(text)):
        raise ConfigError(f"{text!r} in a mix of formats is not kind=format or kind@first-last=format")
    layers = None
    if found["first"]:
        if found["kind"] == HEAD:
            raise ConfigError(f"{text!r} in a mix of formats: the head has no layers; write head={found['format']}")
        layers = range(int(found["first"]), int(found["last"]) + 1)
        if not layers:
            raise ConfigError(f"{text!r} in a mix of formats names no layers; write the lower number first")
    return FormatRule(found["kind"], layers, weight_format(found["format"]), text)


def with_formats(
    facts: ModelFacts, plan: FormatPlan, *, paired: bool = False, stored: StoredFormats = NOTHING_STORED
) -> ModelFacts:
    """The facts with formats; layers of different formats become different kinds.

    With `paired`, 4-bit matrices are multiplied with PAIR. `stored` is what the checkpoint has in 4 bits: where a
    format can hold that, the image takes it over, and the hidden state keeps its basis. Raises ConfigError for a rule
    about a kind or layers that the model does not have.
    """
    _check_rules(facts, plan)
    kinds = [facts.kind_of(layer) for layer in range(facts.num_layers)]
    plain = [(kind, plan.of_layer(layer, facts.kinds[kind], stored)) for layer, kind in enumerate(kinds)]
    head = plan.of_head(stored)
    takes_over = stored.fits([formats for _, formats in plain], head)
    paired = paired and (head.is_four_bit or any(formats.has_four_bits for _, formats in plain))
    layers = [(kind, replace(formats, paired=paired)) for kind, formats in plain]
    # By first use, but what was the usual layer stays it, even where no layer is of its kind.
    usual = next((found for found in layers if found[0] == 0), (0, LayerFormats(paired=paired)))
    order = list(dict.fromkeys([usual, *sorted(layers, key=lambda found: found[0] != 0)]))
    return replace(
        facts,
        formats=order[0][1],
        head_format=head,
        takes_over=takes_over,
        rotated=facts.rotated and not takes_over,
        variants=tuple(replace(facts.kinds[kind], formats=formats) for kind, formats in order[1:]),
        layer_kinds=tuple(order.index(layer) for layer in layers) if len(order) > 1 else (),
    )


def _check_rules(facts: ModelFacts, plan: FormatPlan) -> None:
    known = {kind.mixer for kind in facts.kinds} | {*GATE_UP, *DOWN, HEAD}
    if facts.input_size:
        known.add(INPUTS)
    for rule in plan.rules:
        if rule.kind not in known:
            raise ConfigError(f"{rule.text!r} in a mix of formats: this model has {', '.join(sorted(known))}")
        if rule.layers and rule.layers.start >= facts.num_layers:
            raise ConfigError(f"{rule.text!r} in a mix of formats: the model's layers are 0 to {facts.num_layers - 1}")


def describe_formats(facts: ModelFacts) -> str:
    """All formats of a model in one word, equal for equal ones: `int8`, or `0-3:int8/int8/int8/int8,4-7:..`; `own` at
    its end for weights taken over from a checkpoint of 4 bits."""
    layers = [str(facts.kinds[facts.kind_of(layer)].formats) for layer in range(facts.num_layers)]
    one, own = facts.head_format, "own" if facts.takes_over else ""
    uniform = LayerFormats(one, one, one, one, paired=facts.formats.paired)
    if set(layers) == {str(uniform)}:
        return facts.head_format.name + ("p" if facts.formats.paired else "") + own
    runs, start = [], 0
    for text, run in groupby(layers):
        stop = start + len(list(run))
        runs.append(f"{start}-{stop - 1}:{text}")
        start = stop
    return ",".join([*runs, f"head:{facts.head_format.name}", *([own] if own else [])])


def format_label(facts: ModelFacts) -> str:
    """The same, short and fit for a file's name."""
    text = describe_formats(facts)
    return text if text.isalnum() else f"mix-{blake2b(text.encode(), digest_size=4).hexdigest()}"
