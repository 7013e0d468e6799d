"""`holdfast.__all__` is the public surface: all of it, and nothing beside it."""

from importlib import metadata
from types import ModuleType

import pytest

import holdfast


def undeclared(module: ModuleType) -> set[str]:
    """Public attributes that `__all__` does not name. Submodules are there once something imported them."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not (isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{name}")
    } - set(module.__all__)


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(holdfast, name) is not None
    assert name in dir(holdfast)


def test_public_names_are_listed_in_order_and_once() -> None:
    assert list(holdfast.__all__) == sorted(set(holdfast.__all__))


def test_nothing_public_is_left_out_of_the_list() -> None:
    for name in holdfast.__all__:
        getattr(holdfast, name)  # a lazy name stays once it is loaded, so load them all first
    assert undeclared(holdfast) == set()


def test_an_undeclared_name_is_found_and_a_submodule_is_none() -> None:
    module = ModuleType("kelp")
    vars(module).update(
        __all__=["Frond"],
        Frond=object(),
        _hidden=object(),
        leaked=object(),
        stem=ModuleType("kelp.stem"),
        json=ModuleType("json"),
    )
    assert undeclared(module) == {"json", "leaked"}


def test_a_name_that_does_not_exist_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'no_such_name'"):
        getattr(holdfast, "no_such_name")  # noqa: B009 - the attribute must not exist for the type checker either


def test_the_installed_package_has_the_version_that_the_module_states() -> None:
    assert metadata.version("holdfast") == holdfast.__version__
