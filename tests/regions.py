"""Named spans of a memory, and the check that no two share an address."""

from typing import NamedTuple


class Region(NamedTuple):
    """Addresses start..start + size - 1."""

    name: str
    start: int
    size: int


def assert_disjoint(regions: list[Region], limit: int) -> None:
    """No two regions overlap, and none reaches `limit`."""
    end, before = 0, "the beginning"
    for region in sorted((region for region in regions if region.size), key=lambda region: region.start):
        assert region.start >= end, f"{region.name} at {region.start} overlaps {before}, which ends at {end}"
        end, before = region.start + region.size, region.name
    assert end <= limit, f"{before} ends at {end}, but there are {limit}"
