"""The models of the suite by name: real Keras models in the manner of Keras' own examples."""

from models_dense import autoencoder, keras_19953, mlp, mlp_plain, tabular_batchnorm, wide_and_deep
from models_images import cct, cnn, mobilenet_v2, resnet, vae, vit
from models_text import bilstm, gru, mini_gpt, text_transformer

MODELS = {
    case.__name__: case
    for case in (
        mlp,
        mlp_plain,
        autoencoder,
        tabular_batchnorm,
        keras_19953,
        wide_and_deep,
        cnn,
        resnet,
        mobilenet_v2,
        vae,
        vit,
        cct,
        bilstm,
        gru,
        text_transformer,
        mini_gpt,
    )
}
