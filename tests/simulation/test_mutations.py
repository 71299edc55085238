"""Each breakage of the protocol is found: the simulation checks what it says it does."""

import pytest

from tests.simulation.mutations import LIMIT, MUTATIONS, ROOT, Mutation, hunt


def test_there_are_enough_of_them_each_about_something_else() -> None:
    assert len({mutation.what for mutation in MUTATIONS}) == len(MUTATIONS) >= 22


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_its_text_is_there_once_and_the_broken_code_compiles(mutation: Mutation) -> None:
    text = (ROOT / "leases" / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")


@pytest.mark.soak
@pytest.mark.parametrize(
    "mutation", [mutation for mutation in MUTATIONS if not mutation.model], ids=lambda mutation: mutation.what
)
def test_it_is_found(mutation: Mutation) -> None:
    found, how = hunt(mutation, LIMIT)
    assert found, f"{mutation.what}: {how}"
