"""Several threads use one model, as a server does, or several models at once."""

import threading

import keras
import numpy as np
import pytest

from keras_xla.training.compile import compile
from tests.training.helpers import OPTIONS, SIZE, Log, X, Y, classifier

THREADS, CALLS = 4, 6
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="on JAX nothing is tried, and Keras' predict takes the model's weights away while it runs",
)


def in_threads(*jobs) -> None:
    """Run the jobs at the same time; raises what one of them raised."""
    errors = []

    def guarded(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@on_tensorflow
@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_threads_predict_with_one_model_and_it_compiles_once(jit_compile):
    log, model = Log(), compile(classifier(), **{**OPTIONS, "jit_compile": jit_compile})
    expected = np.asarray(classifier()(X))

    def predict():
        for _ in range(CALLS):
            np.testing.assert_allclose(
                model.predict(X, batch_size=SIZE // 2, verbose=0), expected, rtol=1e-4, atol=1e-5
            )

    in_threads(*[predict] * THREADS)
    assert len(log.new()) == (1 if jit_compile is True else 0)


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_threads_train_a_model_each_as_one_after_the_other(jit_compile):
    def losses(model):
        compile(model, **{**OPTIONS, "jit_compile": jit_compile})
        return model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]

    alone, together = losses(classifier()), {}
    models = [classifier() for _ in range(2)]
    jobs = [lambda i=i: together.update({i: losses(models[i])}) for i in range(2)]
    in_threads(*jobs)
    np.testing.assert_allclose([together[0], together[1]], [alone, alone], rtol=1e-5)
