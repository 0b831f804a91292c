"""Functions as TensorFlow writes them down, under names that do not tell what was traced before them in a process."""

from collections.abc import Iterable
from typing import Any


def with_called(top: Any, library: Iterable) -> list:
    """A function and what it calls of a library, from the first one called on: `FunctionDef`s."""
    known = {each.signature.name: each for each in (*library, top)}
    names = [top.signature.name]
    for name in names:  # which grows
        nodes = known[name].node_def
        called = (other for node in nodes for other in (node.op, *(each.name for each in functions_in(node))))
        names += dict.fromkeys(other for other in called if other in known and other not in names)
    return [known[name] for name in names]


def functions_in(node: Any) -> list:
    """The functions that a `NodeDef` calls, by the names of the attributes that they are: each has a `name`."""
    attributes = [node.attr[name] for name in sorted(node.attr)]
    return [each for value in attributes for each in ([value.func] if value.HasField("func") else value.list.func)]


def compiled_one(functions: list) -> str:
    """The name of the function that XLA compiles: the first of those given, or one that it calls so."""
    top = functions[0]
    if not _is_compiled(top):
        for node in top.node_def:
            if _is_compiled(node):
                return functions_in(node)[0].name
    return top.signature.name


def _is_compiled(x: Any) -> bool:
    return "_XlaMustCompile" in x.attr and x.attr["_XlaMustCompile"].b


def under(functions: list, name: str, named: bool = False) -> list:
    """Functions that call one another, under other names: the name and a number.

    What is inside of them is named by its number, or with `named` as it was, but for their arguments.
    """
    names = {each.signature.name: f"{name}_{i}" for i, each in enumerate(functions)}
    return [_renamed(each, names, named) for each in functions]


def _renamed(function: Any, names: dict[str, str], named: bool) -> Any:
    copy = type(function)()
    copy.CopyFrom(function)
    signature = copy.signature
    signature.name = names[signature.name]
    inside = {arg.name: f"{'argument_' if named else 'a'}{i}" for i, arg in enumerate(signature.input_arg)}
    inside |= {node.name: node.name if named else f"n{i}" for i, node in enumerate(copy.node_def)}
    for arg in signature.input_arg:
        arg.name = inside[arg.name]
    for attributes in (copy.attr, *(each.attr for each in copy.arg_attr.values())):
        for name in ("_user_specified_name", "forward_function_name", "backward_function_name"):  # which count, too
            attributes.pop(name, None)
    for node in copy.node_def:
        node.name, node.op = inside[node.name], names.get(node.op, node.op)
        waits = sorted(_reference(each, inside) for each in node.input if each.startswith("^"))  # in the names' order
        node.input[:] = [_reference(each, inside) for each in node.input if not each.startswith("^")] + waits
        node.ClearField("experimental_debug_info")
        for name in ("_class", "_gradient_op_type"):  # where it would stand, which gradient it would have
            node.attr.pop(name, None)
        for each in functions_in(node):
            each.name = names.get(each.name, each.name)
    for output, source in function.ret.items():
        copy.ret[output] = _reference(source, inside)
    effects = sorted(inside[node] for node in function.control_ret.values())
    signature.control_output[:] = [f"c{i}" for i in range(len(effects))]
    copy.control_ret.clear()
    copy.control_ret.update({f"c{i}": node for i, node in enumerate(effects)})
    return copy


def _reference(text: str, names: dict[str, str]) -> str:
    """`"node:output:0"`, `"argument"` or `"^node"`, under other names."""
    mark = "^" if text.startswith("^") else ""
    name, colon, rest = text.removeprefix("^").partition(":")
    return f"{mark}{names[name]}{colon}{rest}"
