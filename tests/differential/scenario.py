"""A script of actions on a model, drawn from random numbers."""

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.differential import actions as do
from tests.differential.callbacks import BATCHES, BUILTIN, HOOKS, At, Builtin, Look
from tests.differential.data import ARRAYS, FORMS, KNOWN, Data
from tests.differential.models import FIRST_KINDS, KINDS, LATER_KINDS, Kind
from tests.differential.shown import Shown

SLOW = ("lstm", "gru", "convnet", "coder", "wrapped", "augmented")  # to trace
OF_FIRST_KINDS = 500  # numbers
_HOOKS = {"fit": ("train", "epoch", "test"), "evaluate": ("test",), "predict": ("predict",)}


@dataclass(frozen=True, repr=False)
class Scenario(Shown):
    """What is compared.

    Attributes:
        kind: Of model; see `models.KINDS`.
        actions: In order.
        dtype: The policy.
        way: In which keras_xla is led; see `ways.Side`.
        entry: How it gets hold of the model.
        seed: Of all random numbers.
    """

    kind: str = "mlp"
    actions: tuple = ()
    dtype: str = "float32"
    way: str = "plain"
    entry: str = "compile"
    seed: int = 0

    def script(self) -> str:
        """Python that runs it and prints what differs."""
        lines = ",\n        ".join(map(repr, self.actions))
        rest = repr(Scenario(self.kind, (), self.dtype, self.way, self.entry, self.seed)).removeprefix("Scenario(")
        return (
            "from tests.differential.actions import *\n"
            "from tests.differential.callbacks import *\n"
            "from tests.differential.run import compared\n"
            "from tests.differential.scenario import Scenario\n\n"
            f"scenario = Scenario(\n    actions=(\n        {lines},\n    ),\n    {rest.removesuffix(')')}\n)\n"
            'print(*compared(scenario), sep="\\n")\n'
        )


def numbered(number: int, way: str | None = None) -> Scenario:
    """The scenario of that number; the same one for ever, as long as what is drawn below stays.

    Kinds of models that came later are those of the numbers from `OF_FIRST_KINDS` on.

    Args:
        way: One of `WAYS`; as the number has it with None.
    """
    return drawn(random.Random(number), way, FIRST_KINDS if number < OF_FIRST_KINDS else LATER_KINDS)


def drawn(
    rng: random.Random, way: str | None = None, among: Mapping[str, Kind] = FIRST_KINDS | LATER_KINDS
) -> Scenario:
    """A scenario from any source of random numbers (hypothesis' `randoms()` too), of a model's kind `among` these."""
    any_way = rng.choice(("plain",) * 5 + ("xla",) * 3 + ("tried", "partial", "true", "any"))
    way = way or any_way
    kinds = [
        name
        for name, kind in among.items()
        if (kind.splits or way != "partial") and (kind.whole or way != "true") and not kind.longest
    ]
    name = rng.choice([each for each in kinds for _ in range(1 if each in SLOW else 4)])
    kind = KINDS[name]
    dtype = rng.choice(("float32",) * 8 + ("mixed_bfloat16", "mixed_float16"))
    entry = rng.choice(("compile",) * 6 + ("callback", "callback", "enable"))
    draw = _Draw(rng, kind)
    first = draw.compiling()
    rest = [draw.action() for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    if not any(isinstance(each, do.Fit) for each in rest):
        rest.insert(0, draw.fit())
    seed = rng.randrange(100)
    if not kind.forms and rng.randrange(6) == 0:  # at the end, so that all else is what it was before this was drawn
        rest += draw.failing()
    if rng.randrange(10) == 0 and way != "partial":  # another one altogether, so that all others stay what they were
        name = rng.choice([name for name, kind in KINDS.items() if kind.longest])
        rest = _Draw(rng, KINDS[name]).lengths()
    return Scenario(name, (first, *rest), dtype, way, entry, seed)


class _Draw:
    """Draws parts of a scenario for one kind of model."""

    def __init__(self, rng: random.Random, kind: Kind):
        self._rng, self._kind = rng, kind

    def _one_in(self, count: int) -> bool:
        return self._rng.randrange(count) == 0

    def data(self, forms=FORMS, spoiled: bool = False, seed: int = 0) -> Data:
        rng, kind = self._rng, self._kind
        rows, batch = rng.choice(((16, 8), (20, 8), (10, 4), (12, 4), (9, 9), (7, 16), (13, 6)))
        forms = [form for form in forms if form in (kind.forms or FORMS)] or kind.forms
        form = rng.choice(forms) if self._one_in(2) else rng.choice([form for form in forms if form in ARRAYS] or forms)
        if form == "dropped" and rows < batch:
            form = "dataset"  # of a step without a batch, plain Keras runs what does not depend on the batch
        return Data(
            rows=rows,
            batch=batch,
            form=form,
            weighted=self._one_in(5),
            spoiled=rng.choice(kind.bad) if spoiled else "",
            seed=seed,
        )

    def compiling(self, again: bool = False) -> do.Compile:
        rng = self._rng
        return do.Compile(
            optimizer=rng.choice(("sgd", "momentum", "adam", "adamw", "decayed")),
            ema=self._one_in(8),
            accumulate=2 if self._one_in(8) else 0,
            clipnorm=1.0 if self._one_in(8) else None,
            steps_per_execution=3 if self._one_in(10) else 1,
            weighted=self._one_in(8),
            plainly=again and self._one_in(2),
            freeze=again and self._one_in(2),
        )

    def fit(self, nested: bool = False) -> do.Fit:
        rng = self._rng
        data = self.data(spoiled=self._one_in(12))
        epochs = rng.choice((1, 2, 2, 2, 3))
        validation = None
        if self._one_in(2):
            split = data.arrays and self._one_in(3)
            validation = rng.choice((0.2, 0.4)) if split else self.data(spoiled=self._one_in(15), seed=2)
            if isinstance(validation, Data) and validation.form in ("generator", "endless"):
                # Each validation reads ahead in the one Python generator, as far as there is time.
                validation = dataclasses.replace(validation, form="repeated")
        initial_epoch, steps = 1 if self._one_in(8) else 0, rng.choice((1, 2)) if self._one_in(6) else None
        shuffle = not self._one_in(4)
        if data.form == "sequence":
            steps = None  # Keras' thread reads and shuffles ahead, or not yet, when an epoch ends before the data
        return do.Fit(
            data=data,
            epochs=epochs,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps,
            shuffle=shuffle,
            class_weight=self._kind.classes and not data.weighted and self._one_in(6),
            validation=validation,
            validation_freq=2 if self._one_in(6) else 1,
            validation_batch_size=5 if self._one_in(6) else None,
            validation_steps=1 if validation is not None and self._one_in(6) else None,
            verbose=rng.choice((0, 0, 1, 2)),
            callbacks=() if nested else self.callbacks("fit"),
        )

    def failing(self) -> tuple:
        """A fit whose data have an error while steps run ahead of the callbacks; in plain Keras one step at a time.

        Without weight decay: it waits for no batch, so plain Keras may apply that of the step whose batch never came.
        """
        rng = self._rng
        data = Data(rows=64, batch=4, form=rng.choice(("generator", "sequence")), spoiled="raise", seed=3)
        compiling = dataclasses.replace(self.compiling(), steps_per_execution=1)
        if compiling.optimizer == "adamw":
            compiling = dataclasses.replace(compiling, optimizer="adam")
        return compiling, do.Fit(data=data, shuffle=False, callbacks=rng.choice(((), (Look(),))))

    def lengths(self) -> list:
        """Calls with rows of one length after the other."""
        rng, made = self._rng, []
        forms = ("arrays",) if self._one_in(2) else KNOWN
        for _ in range(rng.choice((4, 6, 8))):
            data = dataclasses.replace(self.data(forms), length=rng.randrange(2, self._kind.longest))
            made.append(rng.choice((do.Fit(data=data), do.Evaluate(data=data), do.Predict(data=data))))
        return made

    def callbacks(self, call: str) -> tuple:
        rng, made = self._rng, []
        if not self._one_in(4):
            made.append(Look(batches=self._one_in(3)))
        hooks = [hook for hook in HOOKS if hook.startswith(_HOOKS[call])]
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            hook = rng.choice([hook for hook in hooks if hook not in BATCHES] if self._one_in(2) else hooks)
            made.append(At(hook=hook, action=self.small(), turn=rng.choice((0, 0, 1, None))))
        if call == "fit" and self._one_in(4):
            made.append(Builtin(rng.choice(BUILTIN)))
        rng.shuffle(made)
        return tuple(made)

    def small(self):
        """What a callback does."""
        rng = self._rng
        other = self.data(KNOWN, spoiled=self._one_in(20), seed=1)
        arrays = self.data(ARRAYS, seed=1)
        return rng.choice(
            (
                do.TrainOnBatch(data=arrays, number=rng.randrange(2), return_dict=self._one_in(2)),
                do.TrainOnBatch(data=arrays),
                do.TestOnBatch(data=arrays),
                do.PredictOnBatch(data=arrays),
                do.Evaluate(data=other),
                do.Predict(data=other),
                do.Fit(data=other, validation=self.data(seed=2) if self._one_in(3) else None),
                do.Call(data=arrays),
                do.SetLearningRate(),
                do.ScaleWeights(),
                do.Stop(rng.choice(("fit", "fit", "evaluate", "predict"))),
                do.SaveWeights(),
                do.LoadWeights(),
                self.compiling(again=True),
                do.ChangeArrays(data=Data()),
                do.Raise(rng.choice(("RuntimeError", "ValueError", "KeyboardInterrupt", "StopIteration"))),
            )
        )

    def action(self):
        """What a script does."""
        rng = self._rng
        return rng.choice((self.fit, self.fit, self.fit, self._evaluate, self._predict, self.small, self.small))()

    def _evaluate(self) -> do.Evaluate:
        rng = self._rng
        return do.Evaluate(
            data=self.data(spoiled=self._one_in(12), seed=rng.choice((0, 2))),
            steps=1 if self._one_in(5) else None,
            return_dict=self._one_in(2),
            verbose=rng.choice((0, 0, 1, 2)),
            callbacks=self.callbacks("evaluate"),
        )

    def _predict(self) -> do.Predict:
        rng = self._rng
        return do.Predict(
            data=self.data(spoiled=self._one_in(12), seed=rng.choice((0, 2))),
            steps=1 if self._one_in(5) else None,
            verbose=rng.choice((0, 0, 1, 2)),
            callbacks=self.callbacks("predict"),
        )
