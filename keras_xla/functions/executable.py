"""One executable of `jit`: what it returns, tensors or not, and what it leaves on tensors and layers."""

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_xla.backend.steps import compile_function
from keras_xla.functions.added_losses import AddedLosses
from keras_xla.functions.arrays import is_tensor
from keras_xla.private.keras.logits import logits_of, put_logits
from keras_xla.private.keras.masks import mask_if_known, put_mask

_AS_THEY_ARE = (str, bytes, bool, int, float, complex)  # of what a function returns


def as_it_is(x: Any) -> Any:
    """What comes back as Python has it; None for all else."""
    return x if isinstance(x, _AS_THEY_ARE) else None


def executable_of(name: str, call: Callable, tensors: Sequence[Any], refuse: Callable, losses: AddedLosses) -> Callable:
    """A function of the list of its tensors, compiled: its outputs have the structure of those of `call`.

    Args:
        name: By which errors call it.
        call: What to compile.
        tensors: For their shapes and dtypes.
        refuse: See `backend.steps.compile_function`.
        losses: Of the layers that are known to be called.
    """
    returned: list[Any] = []  # in the last trace: the structure of the outputs, and what in it is no tensor
    others: list[str] = []  # in the last trace: the types of what else there is, which a backend may know or not

    def flat(tensors):
        outputs, added = losses.collected(call, tensors)
        leaves = [x.value if isinstance(x, keras.Variable) else x for x in keras.tree.flatten(outputs)]
        returned[:] = keras.tree.map_structure(lambda _: 0, outputs), list(map(as_it_is, leaves))
        known = (types.NoneType, *_AS_THEY_ARE)
        unknown = [x for x in leaves if not (isinstance(x, known) or is_tensor(x))]
        if iterators := [x for x in unknown if isinstance(x, Iterator)]:  # JAX would warn, and go on
            raise unreturned(type(iterators[0]).__name__)
        others[:] = [type(x).__name__ for x in unknown]
        outputs = [None if isinstance(x, _AS_THEY_ARE) else x for x in leaves]
        return outputs, list(map(mask_if_known, leaves)), list(map(logits_of, leaves)), added

    def unreturned(kind):
        return TypeError(
            f"{name} returned an object of type {kind}; keras_xla.jit takes tensors, numbers, strings and None, in "
            "lists, tuples and dicts."
        )

    def named(run, *args):
        try:
            return run(*args)
        except TypeError as error:
            if not others:
                raise
            raise unreturned(others[0]) from error

    run = named(compile_function, flat, tensors, refuse)

    def executable(tensors):
        made, masks, logits, added = named(run, tensors)
        losses.put(added)
        made = list(map(put_logits, made, logits))
        others.clear()  # the backend knows them: a later TypeError is about something else
        structure, kept = returned  # neither backend gives back strings, nor JAX the order of a dict
        leaves = [x if y is None else y for x, y in zip(map(put_mask, made, masks), kept, strict=True)]
        return keras.tree.pack_sequence_as(structure, leaves)

    return executable
