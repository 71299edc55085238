"""Each breakage of the protocol is found: the simulation checks what it says it does."""

import runpy

import pytest

from tests.simulation.mutations import LIMIT, MUTATIONS, ROOT, Mutation, hunt


def test_there_are_enough_of_them_each_about_something_else() -> None:
    assert len({mutation.what for mutation in MUTATIONS}) == len(MUTATIONS) >= 40


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_its_text_is_there_once_and_the_broken_code_compiles(mutation: Mutation) -> None:
    text = (ROOT / "leases" / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")


@pytest.mark.parametrize(
    "mutation", [mutation for mutation in MUTATIONS if not mutation.model], ids=lambda mutation: mutation.what
)
def test_the_simulation_finds_it(mutation: Mutation) -> None:
    found, how = hunt(mutation, LIMIT)
    assert found, f"{mutation.what}: {how}"


def test_the_model_refutes_the_others() -> None:
    refuted = {run.name for run in runpy.run_path(str(ROOT / "spec" / "check.py"))["MUTATIONS"]}
    assert {mutation.model for mutation in MUTATIONS if mutation.model} <= refuted
