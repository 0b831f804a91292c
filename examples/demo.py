"""`make demo`: both halves of keras_xla on real input, a few minutes on two cores."""

import fit_predict
import generate_text
import smollm2


def main():
    print("1. A Keras classifier of handwritten digits, trained, evaluated and predicted\n", flush=True)
    fit_predict.main()
    print("\n\n2. SmolLM2-135M-Instruct in a Keras pipeline\n", flush=True)
    generate_text.main(smollm2.fetch())


if __name__ == "__main__":
    main()
