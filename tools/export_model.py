#!/usr/bin/env python3
"""Writes an export directory, which `shardproof oracle` and `verify` read, from a transformer of diffusers.

The model is given by class and configuration (with random weights that a seed fixes), by a local checkpoint folder, or,
through the function `export_model`, as an object. It is run on the CPU in float32 and once more in float64; inputs,
weights and outputs are stored, and beside the folder the parallel plans that the class ships. docs/export.md explains
the use. Everything is written to a temporary folder and renamed at the end: an export is complete or absent.
"""

import argparse
import collections.abc
import contextlib
import importlib
import importlib.util
import inspect
import json
import math
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import zlib

try:
    import diffusers
    import numpy
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ImportError as problem:
    if __name__ != "__main__":
        raise
    IMPORT_PROBLEM = problem
else:
    IMPORT_PROBLEM = None

INPUT_TYPES = ("float32", "int64", "int32", "bool")


class ExportError(ValueError):
    """What was asked for is wrong; the message says what, and what was expected."""


def shortened(text, limit=400):
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[:limit] + ".."


def listed(names, limit=4):
    names = sorted(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def read_json(path):
    try:
        value = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ExportError(f"{path}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ExportError(f"{path}: holds no JSON object")
    return value


def read_safetensors(path):
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:
        raise ExportError(f"{path}: cannot be read as safetensors: {shortened(error)}") from error


# ---- the model


def find_class(name):
    """A class by its name in diffusers, or by 'module:Class'."""
    module, _, attribute = name.rpartition(":")
    try:
        found = getattr(importlib.import_module(module) if module else diffusers, attribute)
    except ImportError as error:
        raise ExportError(f"model class '{name}': {shortened(error)}") from error
    except AttributeError as error:
        where = module or f"diffusers {diffusers.__version__}"
        raise ExportError(f"model class '{name}': {where} has no class of that name") from error
    is_model = isinstance(found, type) and issubclass(found, diffusers.ModelMixin)
    if not is_model or not issubclass(found, diffusers.ConfigMixin):
        raise ExportError(f"model class '{name}': is no model of diffusers (a ModelMixin with a configuration)")
    return found


def constructor_arguments(model_class):
    parameters = list(inspect.signature(model_class.__init__).parameters.values())[1:]
    return {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def build_model(model_class, config, where="config"):
    """A new float32 model in evaluation mode. Fields that begin with '_' are notes of diffusers and are passed over."""
    name = model_class.__name__
    if config.get("_class_name", name) != name:
        raise ExportError(f"{where}: is for '{config['_class_name']}', not for '{name}'")
    known = constructor_arguments(model_class)
    fields = {key: value for key, value in config.items() if not key.startswith("_")}
    for key in fields:
        if key not in known:
            raise ExportError(f"{where}: '{key}' is no configuration field of {name}; known: {listed(known, 100)}")
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in fields]
    if missing:
        raise ExportError(f"{where}: {name} needs {listed(missing)}")
    try:
        return model_class(**fields).float().eval().requires_grad_(False)
    except Exception as error:
        raise ExportError(f"{where}: {name} cannot be built: {type(error).__name__}: {shortened(error)}") from error


def draw(shape, *key):
    """Standard normal float32 values that depend on the key and nothing else."""
    generator = torch.Generator().manual_seed(zlib.crc32("/".join(map(str, key)).encode()))
    return torch.randn(*shape, generator=generator)


def draw_weights(model, seed):
    """Random weights that hide nothing: no parameter stays zero or one, and attention is peaked."""
    for path, module in model.named_modules():
        is_norm = "Norm" in type(module).__name__
        is_linear = isinstance(module, (torch.nn.Linear, torch.nn.modules.conv._ConvNd))
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{path}.{name}" if path else name
            values = draw(parameter.shape, seed, full_name)
            if is_norm and name == "weight":
                values = 1.0 + 0.3 * values
                values *= 1.5 if re.search(r"norm(_added)?_[qk]\b", path) else 1.0
            elif is_linear and name == "weight":
                values /= math.sqrt(parameter[0].numel())
            elif not isinstance(module, torch.nn.Embedding):
                values *= 0.5
            parameter.data.copy_(values)


def load_weights(model, state, where):
    """Exactly the state dict of the model, in any floating-point type."""
    expected = model.state_dict()
    missing, unknown = expected.keys() - state.keys(), state.keys() - expected.keys()
    if missing:
        raise ExportError(f"{where}: lacks {len(missing)} weights of {type(model).__name__}: {listed(missing)}")
    if unknown:
        raise ExportError(f"{where}: {len(unknown)} weights are unknown to {type(model).__name__}: {listed(unknown)}")
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{list(tensor.shape)}, but the configuration makes it {list(expected[name].shape)}"
            raise ExportError(f"{where}: '{name}' is {shapes}")
    model.load_state_dict(state)


def checkpoint_weights(folder):
    for name in ("weights.safetensors", "diffusion_pytorch_model.safetensors"):
        if (folder / name).is_file():
            return read_safetensors(folder / name)
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if not indexes:
        raise ExportError(f"{folder}: no weights; expected weights.safetensors, diffusion_pytorch_model.safetensors "
                          "or an index, *.safetensors.index.json")
    weight_map = read_json(indexes[0]).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ExportError(f"{indexes[0]}: has no 'weight_map' from weights to files")
    state = {}
    for name in sorted(set(weight_map.values())):
        state.update(read_safetensors(folder / name))
    return state


def model_from_checkpoint(folder, class_name=None):
    folder = pathlib.Path(folder)
    if not (folder / "config.json").is_file():
        hint = "; its subfolder 'transformer' has one" if (folder / "transformer" / "config.json").is_file() else ""
        raise ExportError(f"{folder}: has no config.json{hint}")
    model = model_from_config(folder / "config.json", class_name)
    load_weights(model, checkpoint_weights(folder), folder)
    return model


def model_from_config(path, class_name=None):
    config = read_json(path)
    class_name = class_name or config.get("_class_name")
    if not isinstance(class_name, str):
        raise ExportError(f"{path}: has no '_class_name'; name the class with --class")
    return build_model(find_class(class_name), config, path)


def rebuilt(model):
    """A model of the same class, configuration and weights, without the hooks, casts and devices of the given one."""
    if not isinstance(model, diffusers.ModelMixin) or not isinstance(model, diffusers.ConfigMixin):
        raise ExportError(f"model: '{type(model).__name__}' is no model of diffusers")
    copy = build_model(type(model), dict(model.config), "model.config")
    load_weights(copy, {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}, "model")
    return copy


# ---- the inputs


def tensor_from_json(case, argument, value, seed):
    """{"shape": [..]}: seeded normal values; {"values": [..], "dtype": ".."}: those."""
    where = f"case '{case}', argument '{argument}'"
    if len(value.keys() & {"shape", "values"}) != 1 or value.keys() - {"shape", "values", "dtype"}:
        raise ExportError(f'{where}: an object has "shape" or "values", and "dtype" where it is not float32; '
                          f"found {shortened(value, 80)}")
    type_name = value.get("dtype", "float32")
    if type_name not in INPUT_TYPES:
        raise ExportError(f"{where}: dtype '{type_name}' is none of {', '.join(INPUT_TYPES)}")
    try:
        if "values" in value:
            return torch.tensor(value["values"], dtype=getattr(torch, type_name))
        if type_name != "float32":
            raise ExportError(f"{where}: {type_name} tensors need \"values\"; a \"shape\" draws float32")
        return draw(value["shape"], seed, case, argument)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"{where}: {shortened(value, 80)} makes no tensor: {shortened(error)}") from error


def with_tuples(value, inner=False):
    """JSON has no tuples, and models tell a shape, (frames, height, width), from a list of shapes by the type."""
    if not isinstance(value, list):
        return value
    if inner and not any(isinstance(item, list) for item in value):
        return tuple(value)
    return [with_tuples(item, True) for item in value]


def arguments_from_json(path, case, seed):
    """Objects are tensors, lists of objects are lists of tensors, anything else is a setting."""

    def converted(argument, value):
        if isinstance(value, dict):
            return tensor_from_json(case, argument, value, seed)
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            return [tensor_from_json(case, f"{argument}.{i}", item, seed) for i, item in enumerate(value)]
        return with_tuples(value)

    return {argument: converted(argument, value) for argument, value in read_json(path).items()}


def arguments_from_safetensors(path, known):
    """Tensors by argument; 'name.0', 'name.1', .. are the elements of a list."""
    arguments, lists = {}, collections.defaultdict(dict)
    for name, tensor in read_safetensors(path).items():
        stem, _, index = name.rpartition(".")
        if name not in known and index.isdecimal():
            lists[stem][int(index)] = tensor
        else:
            arguments[name] = tensor
    for name, items in lists.items():
        if sorted(items) != list(range(len(items))):
            raise ExportError(f"{path}: list '{name}' has the elements {sorted(items)}; expected 0, 1, ..")
        arguments[name] = [items[i] for i in range(len(items))]
    return arguments


def arguments_from_function(source, model, seed):
    """The dictionary that 'module:function' or 'file.py:function' returns; the function may take the model."""
    module_name, _, function_name = source.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(pathlib.Path(module_name).stem, module_name)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(module_name)
        function = getattr(module, function_name)
        torch.manual_seed(seed)
        arguments = function(model) if inspect.signature(function).parameters else function()
    except Exception as error:
        raise ExportError(f"inputs '{source}': {type(error).__name__}: {shortened(error)}") from error
    if not isinstance(arguments, dict):
        raise ExportError(f"inputs '{source}': returned '{type(arguments).__name__}'; expected a dictionary")
    return arguments


def read_arguments(source, case, model, seed):
    if source.endswith(".safetensors"):
        return arguments_from_safetensors(source, inspect.signature(model.forward).parameters)
    if source.endswith(".json"):
        return arguments_from_json(source, case, seed)
    if not re.fullmatch(r".+:\w+", source):
        raise ExportError(f"inputs '{source}': expected FILE.safetensors, FILE.json or module:function")
    return arguments_from_function(source, model, seed)


def checked_setting(where, value):
    """A setting as the case description can hold it: none, a bool, a number, a string, or nested lists of numbers."""

    def is_number(item):
        return isinstance(item, (int, float)) and not isinstance(item, bool) and math.isfinite(item)

    def as_lists(item):
        if isinstance(item, (list, tuple)):
            return [as_lists(inner) for inner in item]
        if is_number(item):
            return item
        raise ExportError(f"{where}: {shortened(item, 80)!r} of a list is neither a number, a list nor a tensor")

    if isinstance(value, (bool, str)) or is_number(value):
        return value
    if isinstance(value, (list, tuple)):
        return as_lists(value)
    kind = type(value).__name__
    raise ExportError(f"{where}: {shortened(value, 80)!r} of type '{kind}' cannot be stored; expected a tensor, a list "
                      "of tensors, none, a bool, a finite number, a string or a list of numbers")


class Case:
    """The arguments of one call, sorted by what they are."""

    def __init__(self, name, arguments, model):
        self.name, self.tensors, self.lists, self.none = name, {}, {}, []
        self.settings, self.stored_settings = {}, {}
        parameters = inspect.signature(model.forward).parameters
        for argument, value in arguments.items():
            where = f"case '{name}', argument '{argument}'"
            if argument not in parameters or argument == "return_dict":
                known = listed(parameters.keys() - {"return_dict"}, 100)
                raise ExportError(f"{where}: {type(model).__name__} has no such argument; known: {known}")
            value = torch.from_numpy(value) if isinstance(value, numpy.ndarray) else value
            if value is None:
                self.none.append(argument)
            elif isinstance(value, torch.Tensor):
                self.tensors[argument] = self.stored(where, value)
            elif isinstance(value, (list, tuple)) and value and all(isinstance(i, torch.Tensor) for i in value):
                self.lists[argument] = [self.stored(where, item) for item in value]
            else:
                self.settings[argument] = value
                self.stored_settings[argument] = checked_setting(where, value)
        missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in arguments
                   and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if missing:
            raise ExportError(f"case '{name}': {type(model).__name__} needs the arguments {listed(missing)}")

    @staticmethod
    def stored(where, tensor):
        tensor = tensor.detach().cpu()
        if tensor.is_complex():
            raise ExportError(f"{where}: complex tensors cannot be stored")
        return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()

    def file_tensors(self):
        items = {f"{name}.{i}": item for name, tensors in self.lists.items() for i, item in enumerate(tensors)}
        return {**self.tensors, **items}

    def call_arguments(self, dtype):
        def cast(tensor):
            return tensor.to(dtype) if tensor.is_floating_point() else tensor.clone()

        arguments = {name: cast(tensor) for name, tensor in self.tensors.items()}
        arguments.update({name: [cast(tensor) for tensor in tensors] for name, tensors in self.lists.items()})
        return {**arguments, **dict.fromkeys(self.none), **self.settings}


# ---- running


def tensors_in(value):
    """The tensors of a module's output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, collections.abc.Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]


class Trace:
    """The outputs of every module of one run, in the order in which the modules returned."""

    def __init__(self, model):
        self.calls, self.handles = [], []
        for path, module in model.named_modules():
            if not isinstance(module, (torch.nn.Identity, torch.nn.modules.dropout._DropoutNd)):
                self.handles.append(module.register_forward_hook(self.hook(path)))

    def hook(self, path):
        def record(_module, _inputs, output):
            real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors_in(output)]
            self.calls.append((path, [t.detach().to(torch.float64, copy=True).contiguous() for t in real]))

        return record

    def tensors(self):
        for handle in self.handles:
            handle.remove()
        width = max(4, len(str(len(self.calls))))
        return {f"{number:0{width}}:{path}#{i}": tensor
                for number, (path, outputs) in enumerate(self.calls) for i, tensor in enumerate(outputs)}


def run(model, case, dtype):
    """The outputs by name: the fields of the model's output class, else 'sample', 'output1', .."""
    arguments = case.call_arguments(dtype)
    if "return_dict" in inspect.signature(model.forward).parameters:
        arguments["return_dict"] = True
    try:
        with torch.no_grad():
            result = model(**arguments)
    except Exception as error:
        given = listed(case.call_arguments(dtype), 100)
        raise ExportError(f"case '{case.name}': {type(model).__name__} failed with the arguments {given}: "
                          f"{type(error).__name__}: {shortened(error)}") from error
    if isinstance(result, collections.abc.Mapping):
        outputs = {name: value for name, value in result.items() if value is not None}
    else:
        values = result if isinstance(result, (list, tuple)) else [result]
        outputs = {f"output{i}" if i else "sample": value for i, value in enumerate(values)}
    for name, value in outputs.items():
        if not isinstance(value, torch.Tensor):
            raise ExportError(f"case '{case.name}': output '{name}' is no tensor, but '{type(value).__name__}'")
        if not torch.isfinite(value).all():
            raise ExportError(f"case '{case.name}': output '{name}' is not finite everywhere")
    return {name: value.detach().to(dtype).contiguous().clone() for name, value in outputs.items()}


# ---- plans


def plan_of(model):
    """The plans that the class ships, in the form that `--plan FILE` reads; none if it has neither."""

    def contextual(entry):
        if isinstance(entry, dict):
            return {str(key): contextual(value) for key, value in entry.items()}
        if isinstance(entry, (list, tuple)):
            return [contextual(item) for item in entry]
        return dict(vars(entry))

    def style(entry):
        if isinstance(entry, str):
            return entry
        names = {"PackedColwiseParallel": "packed_colwise", "PackedRowwiseParallel": "packed_rowwise"}
        kind = type(entry).__name__
        if kind not in names:
            raise ExportError(f"{type(model).__name__}: the tensor-parallel style '{kind}' of its plan is unknown")
        return {names[kind]: entry.blocks}

    plan = {"model": type(model).__name__}
    if getattr(model, "_cp_plan", None):
        plan["cp"] = contextual(model._cp_plan)
    if getattr(model, "_tp_plan", None):
        plan["tp"] = {glob: style(entry) for glob, entry in model._tp_plan.items()}
    return plan if len(plan) > 1 else None


# ---- writing


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_config(folder, model):
    known = constructor_arguments(type(model))
    fields = {key: value for key, value in dict(model.config).items() if key in known}
    head = {"_class_name": type(model).__name__, "_diffusers_version": diffusers.__version__}
    try:
        write_json(folder / "config.json", {**head, **fields})
    except (TypeError, ValueError) as error:
        raise ExportError(f"the configuration of {type(model).__name__} cannot be stored as JSON: {error}") from error


def write_weights(folder, model):
    state = model.state_dict()
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, folder / "weights.safetensors")


def largest_difference(a, b):
    return float((a - b).abs().max()) if a.numel() else 0.0


def write_case(folder, case, model_name, fp32, fp64, trace, notes):
    description = {
        "model": model_name,
        "case": case.name,
        **notes,
        "tensor_args": list(case.tensors),
        "tensor_list_args": {name: len(items) for name, items in case.lists.items()},
        "none_args": case.none,
        "args": case.stored_settings,
        "outputs": list(fp32),
        "output_shapes": {name: list(value.shape) for name, value in fp32.items()},
        "max_abs_fp32_fp64": max(largest_difference(fp32[name], fp64[name]) for name in fp32),
        "has_trace": trace is not None,
    }
    write_json(folder / f"{case.name}.json", description)
    save_file(case.file_tensors(), folder / f"{case.name}.inputs.safetensors")
    outputs = {f"fp32.{name}": value for name, value in fp32.items()}
    outputs.update({f"fp64.{name}": value for name, value in fp64.items()})
    save_file(outputs, folder / f"{case.name}.outputs.safetensors")
    if trace is not None:
        save_file(trace.tensors(), folder / f"{case.name}.trace.safetensors")


@contextlib.contextmanager
def appearing_at_once(folder, plan_file):
    """A temporary folder and plan file that get their names when the block ends well, and vanish when it does not."""
    for path in (folder, plan_file):
        if os.path.lexists(path):
            raise ExportError(f"{path}: exists already; an export is written to a new place")
        if not path.parent.is_dir():
            raise ExportError(f"{path}: its parent is no folder")
    try:
        working = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    except OSError as error:
        raise ExportError(f"{folder}: cannot be written: {error.strerror}") from error
    working_plan = plan_file.with_name(f".{plan_file.name}.{working.name.rpartition('-')[2]}")
    try:
        yield working, working_plan
        give_usual_permissions(working)
        if working_plan.exists():
            working_plan.rename(plan_file)
        try:
            working.rename(folder)
        except OSError:
            plan_file.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ExportError(f"{folder}: cannot be written: {error.strerror}") from error
    except SafetensorError as error:
        raise ExportError(f"{folder}: cannot be written: {shortened(error)}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)
        working_plan.unlink(missing_ok=True)


def give_usual_permissions(folder):
    """Those of any new file: temporary folders and safetensors files are made for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for file in folder.iterdir():
        file.chmod(0o666 & ~mask)


def check_case_names(inputs, trace):
    if not inputs:
        raise ExportError("no case is given; an export has at least one")
    for name in inputs:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", str(name)) or name == "config":
            raise ExportError(f"case name '{name}': expected letters, digits, '_' and '-', and not 'config'")
    for name in trace:
        if name not in inputs:
            raise ExportError(f"a trace of case '{name}' is asked for, which is unknown; known: {listed(inputs, 100)}")


def write_export(model, folder, inputs, trace, plan_file, notes):
    """Exports a float32 model that is ours to change: it is left in float64."""
    folder = pathlib.Path(folder)
    plan_file = pathlib.Path(plan_file) if plan_file else folder.with_name(folder.name + ".plan.json")
    check_case_names(inputs, trace)
    cases = [Case(name, arguments, model) for name, arguments in inputs.items()]
    plan = plan_of(model)
    with appearing_at_once(folder, plan_file) as (working, working_plan):
        write_config(working, model)
        write_weights(working, model)
        fp32 = {case.name: run(model, case, torch.float32) for case in cases}
        model.double()
        for case in cases:
            recorder = Trace(model) if case.name in trace else None
            fp64 = run(model, case, torch.float64)
            write_case(working, case, type(model).__name__, fp32[case.name], fp64, recorder, notes)
        if plan is not None:
            write_json(working_plan, plan)
    return {"folder": folder, "cases": fp32, "plan": plan_file if plan is not None else None}


def export_model(model, folder, inputs, *, trace=(), plan_file=None):
    """Writes `folder` and its plan file from a loaded model, which stays as it is.

    `inputs` holds the cases: {name: {argument of forward: tensor, list of tensors, None, number, string, ..}}. `trace`
    names the cases whose module outputs are stored too. The plan file is `folder`.plan.json if none is named; a model
    without plans gets none. ExportError says what is wrong with the request; nothing has been written then.
    """
    return write_export(rebuilt(model), folder, inputs, trace, plan_file, {})


# ---- the command line


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ExportError(f"{message} (--help lists the options)")


def parse(arguments):
    parser = Parser(prog="export_model.py", description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("folder", help="the export directory; must not exist")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--config", metavar="FILE", help="the model's config.json; its weights are drawn from --seed")
    model.add_argument("--checkpoint", metavar="DIR", help="a local folder of config.json and safetensors weights")
    parser.add_argument("--class", dest="class_name", metavar="NAME",
                        help="a class of diffusers, or module:Class; default: '_class_name' of the configuration")
    parser.add_argument("--case", action="append", required=True, metavar="NAME=SOURCE",
                        help="arguments of one call: FILE.safetensors, FILE.json or module:function; "
                        "the sources of one name are joined")
    parser.add_argument("--trace", action="append", default=[], metavar="NAME", help="store every module's outputs too")
    parser.add_argument("--plan", metavar="FILE", help="where the plans go; default: FOLDER.plan.json")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and inputs; default: 0")
    return parser.parse_args(arguments)


def read_cases(options, model):
    cases = {}
    for text in options.case:
        name, equals, source = text.partition("=")
        if not name or not equals or not source:
            raise ExportError(f"--case '{text}': expected NAME=SOURCE")
        arguments = cases.setdefault(name, {})
        for argument, value in read_arguments(source, name, model, options.seed).items():
            if argument in arguments:
                raise ExportError(f"case '{name}': two sources give the argument '{argument}'")
            arguments[argument] = value
    return cases


def main(arguments):
    try:
        options = parse(arguments)
        if IMPORT_PROBLEM is not None:
            raise ExportError(f"{IMPORT_PROBLEM}; do: pip install torch==2.13.0 diffusers==0.42.1 safetensors numpy")
        if os.path.lexists(options.folder):
            raise ExportError(f"{options.folder}: exists already; an export is written to a new place")
        diffusers.utils.logging.set_verbosity_error()
        notes = {}
        if options.config:
            model = model_from_config(options.config, options.class_name)
            draw_weights(model, options.seed)
            notes["weights_seed"] = options.seed
        else:
            model = model_from_checkpoint(options.checkpoint, options.class_name)
        cases = read_cases(options, model)
        result = write_export(model, options.folder, cases, options.trace, options.plan, notes)
    except ExportError as error:
        print(f"export_model: {error}", file=sys.stderr)
        return 2
    for name, outputs in result["cases"].items():
        shapes = ", ".join(f"{output} {list(value.shape)}" for output, value in outputs.items())
        print(f"case {name}: {shapes}")
    print(f"export  {result['folder']}")
    print(f"plan    {result['plan'] or 'none: the class ships no plan'}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary folder goes
    sys.exit(main(sys.argv[1:]))
