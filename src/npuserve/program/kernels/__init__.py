"""Emission of one part of a step each; every family composes these."""
