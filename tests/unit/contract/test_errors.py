from __future__ import annotations

import enginebay
from enginebay import errors


def test_every_kind_is_its_own_and_survives_a_process_border() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.EnginebayError)]
    assert len({one.kind for one in classes}) == len(classes)
    for one in classes:
        again = errors.from_kind(one.kind, "what", "do", "param")
        assert type(again) is one and (again.message, again.hint, again.param) == ("what", "do", "param")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for one in errors.ERRORS_BY_KIND.values():
        assert one.__name__ in errors.__doc__


def test_public_names_are_real() -> None:
    for name in enginebay.__all__:
        assert getattr(enginebay, name) is not None
