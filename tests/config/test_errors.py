"""The parts of an error, and the sentence that is made of them."""

from __future__ import annotations

import pickle
from dataclasses import replace

from codespec.errors import FIELD, Fault, ModelError, RequestError, ServeError


def test_a_problem_and_its_fix_make_a_sentence() -> None:
    error = ModelError("./model has no config.json", "choose a model's folder")
    assert str(error) == "./model has no config.json: choose a model's folder."
    assert error.fault == Fault("", "./model has no config.json", "choose a model's folder")


def test_a_plain_sentence_is_not_split() -> None:
    for message in ("It is broken: fetch it again.", "It is broken: fetch it again"):
        error = ServeError(message, 429, 2)
        assert (str(error), error.status, error.retry_after) == ("It is broken: fetch it again.", 429, 2)
        assert error.fault == Fault("", "It is broken: fetch it again")


def test_a_field_has_the_clients_name() -> None:
    error = RequestError(Fault("invalid_field", f"{FIELD} must be at least 1", field="max_tokens"))
    renamed = RequestError(replace(error.fault, field="options.num_predict"))
    assert (str(error), error.field) == ("max_tokens must be at least 1.", "max_tokens")
    assert (str(renamed), renamed.field) == ("options.num_predict must be at least 1.", "options.num_predict")


def test_a_fault_can_be_the_cause_of_another() -> None:
    fault = Fault("lossy", "its tokenizer loses bytes", "choose another model").within("./model can't be used")
    assert fault.code == "lossy"
    assert fault.sentence == "./model can't be used, because its tokenizer loses bytes: choose another model."


def test_an_error_keeps_its_parts_between_processes() -> None:
    error = ModelError("it is broken", "fetch it again")
    assert pickle.loads(pickle.dumps(error)).fault == error.fault
