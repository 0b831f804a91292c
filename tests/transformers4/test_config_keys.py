"""Configs are read as transformers 4 reads them, too."""

from tests.models.test_config_keys import (  # noqa: F401
    test_a_config_without_keys_is_that_of_transformers,
    test_defaults_are_those_of_transformers,
    test_files_of_the_hub_are_read_as_transformers_reads_them,
    test_files_that_transformers_writes_are_read_as_it_reads_them,
    test_other_names_are_those_of_transformers,
)
