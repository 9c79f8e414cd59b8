# SPDX-License-Identifier: Apache-2.0
"""Whether an object is one of Kubernetes', by the models that its Python client has: they come from the API's own description. Nothing that the
API does not know is passed over, as `kubectl` would have its server refuse it."""

import datetime
import re

import pytest

# resource.Quantity of the API, of which the description says only that it is a string.
QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "datetime": (str, datetime.datetime), "object": object}


def models():
    return pytest.importorskip("kubernetes.client", reason="NOT TESTED: the manifests' fields and types; deploy/install-deps installs "
                                                           "python3-kubernetes")


def complaints(made):
    """What is wrong with an object of a manifest: a line for each."""
    client = models()
    version, kind = str(made.get("apiVersion")), str(made.get("kind"))
    calls = getattr(client, _calls_of(version), None)
    if not hasattr(calls, "create_namespaced" + re.sub("[A-Z]", lambda found: "_" + found[0].lower(), kind)):
        return [f"there is no {version} {kind}"]
    name = version.rpartition("/")[2].capitalize() + kind
    return list(_of_model(client, name, made, kind))


def _calls_of(version):
    """The class of an API's calls: apps/v1 → AppsV1Api, networking.k8s.io/v1 → NetworkingV1Api, v1 → CoreV1Api."""
    group, _, number = version.rpartition("/")
    return (group.removesuffix(".k8s.io").capitalize() or "Core") + number.capitalize() + "Api"


def _of_model(client, name, value, at):
    model = getattr(client, name)
    if not isinstance(value, dict):
        yield f"{at} is no {name}"
        return
    known = {wire: field for field, wire in model.attribute_map.items()}
    for field in value.keys() - known.keys():
        yield f"{at}.{field}: {name} has {', '.join(sorted(known))}"
    for field in value.keys() & known.keys():
        yield from _of_type(client, model.openapi_types[known[field]], value[field], f"{at}.{field}")
    try:  # what is required, and what a setter refuses
        model(**{known[field]: given for field, given in value.items() if field in known})
    except ValueError as refusal:
        yield f"{at}: {refusal}"


def _of_type(client, kind, value, at):
    if listed := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{at} is no list"
            return
        for index, item in enumerate(value):
            yield from _of_type(client, listed[1], item, f"{at}[{index}]")
    elif mapped := re.fullmatch(r"dict\(str, (.+)\)", kind):
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            yield f"{at} is no map of names"
            return
        for name, item in value.items():
            yield from _of_type(client, mapped[1], item, f"{at}.{name}")
            if re.search(r"\.(limits|requests)$", at) and not QUANTITY.fullmatch(str(item)):
                yield f"{at}.{name}: {item!r} is no quantity"
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind in ("int", "float")):
            yield f"{at}: {value!r} is no {kind}"
    else:
        yield from _of_model(client, kind, value, at)
