"""Where public questions come from: whom to credit, and what their licences ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """A public set: its name, its licence ("" where its page must be asked), and the work to cite."""

    name: str
    licence: str
    citation: str

    @property
    def credit(self) -> str:
        return f"{self.name}: {self.citation}; {self.licence or 'its licence stands on its page'}"


_WIKIPEDIA = "texts of Wikipedia CC BY-SA"
CARR = Origin("CaRR", "", "Chaining the Evidence, arXiv 2601.06021")
DEEPDIVE = Origin("DeepDive", "", "Lu et al., DeepDive, arXiv 2509.10446")
WORLD = Origin("the built-in world of carr_jax", "Apache-2.0", "invented from a seed, about nothing real")
_BY_SOURCE = {
    "2wikimultihopqa": Origin("2WikiMultihopQA", f"Apache-2.0, {_WIKIPEDIA}", "Ho et al., COLING 2020"),
    "musique_ans": Origin("MuSiQue", f"CC BY 4.0, {_WIKIPEDIA}", "Trivedi et al., TACL 2022"),
    "hotpotqa_distractor": Origin("HotpotQA", f"CC BY-SA 4.0, {_WIKIPEDIA}", "Yang et al., EMNLP 2018"),
    "webshaper": Origin("WebShaper", "MIT", "Tao et al., arXiv 2507.15061"),
    "deepdive": DEEPDIVE,
    "carr": CARR,
    "deepsearch_with_browser": CARR,
    "deepsearch_with_browser_eval": CARR,
    "world": WORLD,
}


def origins(sources: Iterable[str]) -> tuple[Origin, ...]:
    """Those of the sources that are known, in the order of their names."""
    found = {_BY_SOURCE[source] for source in sources if source in _BY_SOURCE}
    return tuple(sorted(found, key=lambda origin: origin.name))


def licence(sources: Iterable[str]) -> str:
    """What a mixture must keep: every licence, "" when one of them is not known."""
    licences = [_BY_SOURCE[source].licence if source in _BY_SOURCE else "" for source in sorted(set(sources))]
    return "; ".join(dict.fromkeys(licences)) if all(licences) else ""
