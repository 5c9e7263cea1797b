"""Tests of tools/export_model.py, started by tools/test_export.sh, which finds a Python that has torch and diffusers.

The exporter is run as users run it. A stored golden is exported again and compared with what was stored; the program
named by SHARDPROOF must agree with every export; wrong requests must end in one line and leave nothing behind.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import diffusers
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/data/goldens/flux/tiny"
EXPORTER = ROOT / "tools/export_model.py"
SHARDPROOF = os.environ["SHARDPROOF"]
CASES = ("base", "batch2", "controlnet", "realistic_t")

sys.path.insert(0, str(ROOT / "tools"))
from export_model import ExportError, export_model, main  # noqa: E402


def read(path):
    return json.loads(path.read_text())


class ExportTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def started(self, *command):
        return subprocess.run([str(part) for part in command], cwd=self.folder, capture_output=True, text=True)

    def exporter(self, *arguments):
        """The command line within this process, which spares the seconds in which torch is loaded."""
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = main([str(argument) for argument in arguments])
        return status, output.getvalue(), errors.getvalue()

    def export(self, *arguments):
        status, _output, errors = self.exporter(*arguments)
        self.assertEqual((status, errors), (0, ""))

    def assert_ends_well(self, *command):
        result = self.started(SHARDPROOF, *command)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def assert_close(self, actual, expected, tolerance):
        self.assertEqual(actual.shape, expected.shape)
        self.assertEqual(actual.dtype, expected.dtype)
        self.assertLessEqual(float((actual - expected).abs().max()), tolerance)

    def flux_config(self, **changes):
        config = {**read(GOLDEN / "config.json"), **changes}
        path = self.folder / "config.json"
        path.write_text(json.dumps({key: value for key, value in config.items() if value != "left out"}))
        return path


class GoldenExport(ExportTest):
    def test_is_what_is_stored(self):
        settings = self.folder / "settings.json"
        settings.write_text('{"controlnet_blocks_repeat": false, "guidance": null}')
        cases = [f"--case={name}={GOLDEN}/{name}.inputs.safetensors" for name in CASES]
        self.export("again", "--checkpoint", GOLDEN, *cases, f"--case=controlnet={settings}", "--trace", "base")
        again = self.folder / "again"
        self.assertEqual(read(again / "config.json"), read(GOLDEN / "config.json"))
        stored = load_file(GOLDEN / "weights.safetensors")
        written = load_file(again / "weights.safetensors")
        self.assertEqual(written.keys(), stored.keys())
        for name, tensor in stored.items():
            self.assertTrue(torch.equal(written[name], tensor), name)
        for name in CASES:
            self.check_case(again, name)
        self.check_trace(again)
        # `exact` is what diffusers cannot compute; everything else must agree.
        report = self.assert_ends_well("oracle", again)
        self.assertIn("AGREES, ", report)
        self.assertIn("136 of 136 entries compared", report)
        self.assertIn("2 DIFFERENT", self.started(SHARDPROOF, "verify", again, "--case", "controlnet", "--plan",
                                                  "again.plan.json", "--ulysses-degree", "2").stdout)
        self.assert_ends_well("verify", again, "--case", "base", "--plan", "again.plan.json", "--ulysses-degree", "2",
                              "--tp-degree", "2")

    def check_case(self, again, name):
        description, stored = read(again / f"{name}.json"), read(GOLDEN / f"{name}.json")
        for key in ("model", "case", "outputs", "output_shapes", "args", "tensor_list_args", "has_trace"):
            self.assertEqual(description[key], stored[key], f"{name}: {key}")
        self.assertCountEqual(description["tensor_args"], stored["tensor_args"])
        # Float32 attention and tables differ between processors; sinusoids of large angles lose more digits.
        tolerance = 2e-4 if name == "realistic_t" else 2e-5
        written = load_file(again / f"{name}.outputs.safetensors")
        expected = load_file(GOLDEN / f"{name}.outputs.safetensors")
        self.assertCountEqual(written, ["fp32.sample", "fp64.sample"])
        for key, tensor in written.items():
            self.assert_close(tensor, expected[key], tolerance)

    def check_trace(self, again):
        written = load_file(again / "base.trace.safetensors")
        expected = load_file(GOLDEN / "base.trace.safetensors")
        self.assertEqual(sorted(written), sorted(expected))
        for key, tensor in written.items():
            self.assert_close(tensor, expected[key], 2e-5)


class RandomExport(ExportTest):
    def export_twice(self, seeds):
        config = self.flux_config()
        inputs = f"--case=base={GOLDEN}/base.inputs.safetensors"
        for name, seed in zip(("one", "two"), seeds):
            self.export(name, "--config", config, inputs, "--seed", seed)
        return [load_file(self.folder / name / "weights.safetensors") for name in ("one", "two")]

    def test_of_a_checkpoint_in_several_files_has_all_weights(self):
        weights = load_file(GOLDEN / "weights.safetensors")
        files = {name: f"part{i % 2}.safetensors" for i, name in enumerate(sorted(weights))}
        for file in set(files.values()):
            save_file({name: weights[name] for name in weights if files[name] == file}, self.folder / file)
        index = self.folder / "diffusion_pytorch_model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
        self.flux_config()
        self.export("export", "--checkpoint", ".", f"--case=base={GOLDEN}/base.inputs.safetensors")
        written = load_file(self.folder / "export/weights.safetensors")
        self.assertEqual(written.keys(), weights.keys())
        for name, tensor in weights.items():
            self.assertTrue(torch.equal(written[name], tensor), name)

    def test_has_the_same_weights_for_the_same_seed(self):
        one, two = self.export_twice((3, 3))
        for name, tensor in one.items():
            self.assertTrue(torch.equal(tensor, two[name]), name)

    def test_has_other_weights_for_another_seed_and_none_that_hide_anything(self):
        one, two = self.export_twice((3, 4))
        for name, tensor in one.items():
            self.assertFalse(torch.equal(tensor, two[name]), name)
            self.assertGreater(float(tensor.std()), 0.01, name)

    def test_of_the_documentation_agrees(self):
        text = (ROOT / "docs/export.md").read_text()
        blocks = re.findall(r"^```\n(cat > .*?)^```", text, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 2)
        (self.folder / "tools").symlink_to(ROOT / "tools")
        (self.folder / "shardproof").symlink_to(SHARDPROOF)
        path = f"{self.folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        for block in blocks:
            result = self.started("env", f"PATH={path}", "bash", "-euo", "pipefail", "-c", block)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("Our dense model agrees with the export", result.stdout)
            self.assertIn("Everything that was run is verified", result.stdout)


class ModelObject(ExportTest):
    def setUp(self):
        super().setUp()
        self.model = diffusers.FluxTransformer2DModel(**{
            key: value for key, value in read(GOLDEN / "config.json").items() if not key.startswith("_")})
        self.inputs = {"base": load_file(GOLDEN / "base.inputs.safetensors")}

    def test_is_exported_and_left_as_it_is(self):
        self.model.bfloat16().train()
        export_model(self.model, self.folder / "export", self.inputs, plan_file=self.folder / "plan.json")
        self.assertEqual(self.model.dtype, torch.bfloat16)
        self.assertTrue(self.model.training)
        self.assertCountEqual(os.listdir(self.folder), ["export", "plan.json"])
        self.assert_ends_well("oracle", self.folder / "export")

    def test_with_weights_of_an_adapter_is_refused(self):
        self.model.x_embedder.adapter = torch.nn.Linear(2, 2)
        with self.assertRaisesRegex(ExportError, "^model: 2 weights are unknown to FluxTransformer2DModel: x_emb"):
            export_model(self.model, self.folder / "export", self.inputs)
        self.assertEqual(os.listdir(self.folder), [])

    def test_that_is_no_model_of_diffusers_is_refused(self):
        with self.assertRaisesRegex(ExportError, "'Linear' is no model of diffusers"):
            export_model(torch.nn.Linear(1, 1), self.folder / "export", self.inputs)


class WrongRequest(ExportTest):
    """Each ends with exit status 2 and one line; no file appears."""

    base = f"--case=base={GOLDEN}/base.inputs.safetensors"

    def assert_refused(self, message, *arguments):
        before = sorted(os.listdir(self.folder))
        status, output, errors = self.exporter(*arguments)
        self.assertEqual((status, output), (2, ""), errors)
        self.assertRegex(errors, r"\Aexport_model: [^\n]*\n\Z")
        self.assertIn(message, errors)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def assert_inputs_refused(self, message, text):
        (self.folder / "inputs.json").write_text(text)
        self.assert_refused(message, "new", "--checkpoint", GOLDEN, "--case=base=inputs.json")

    def test_names_the_class_that_is_unknown(self):
        for name, message in (
            ("FluxTransformer3DModel", "'FluxTransformer3DModel': diffusers 0.42.1 has no class of that name"),
            ("json:loads", "model class 'json:loads': is no model of diffusers"),
            ("no_such_module:Class", "model class 'no_such_module:Class': No module named 'no_such_module'"),
        ):
            self.assert_refused(message, "new", "--config", self.flux_config(_class_name=name), self.base)
        config = self.flux_config(_class_name="left out")
        self.assert_refused("has no '_class_name'; name the class with --class", "new", "--config", config, self.base)
        config = self.flux_config()
        self.assert_refused("is for 'FluxTransformer2DModel', not for 'WanTransformer3DModel'", "new", "--config",
                            config, "--class", "WanTransformer3DModel", self.base)

    def test_names_the_configuration_field(self):
        config = self.flux_config(number_of_layers=3)
        self.assert_refused("'number_of_layers' is no configuration field of FluxTransformer2DModel; known: attention",
                            "new", "--config", config, self.base)
        config = self.flux_config(num_layers="two")
        self.assert_refused("FluxTransformer2DModel cannot be built: TypeError", "new", "--config", config, self.base)

    def test_names_weights_that_do_not_fit(self):
        self.flux_config()
        weights = load_file(GOLDEN / "weights.safetensors")
        bias = weights.pop("proj_out.bias")
        for state, message in (
            (weights, "lacks 1 weights of FluxTransformer2DModel: proj_out.bias"),
            ({**weights, "proj_out.bias": bias, "extra": bias + 1}, "unknown to FluxTransformer2DModel: extra"),
            ({**weights, "proj_out.bias": torch.zeros(7)}, "'proj_out.bias' is [7], but the configuration makes it [4"),
        ):
            save_file(state, self.folder / "weights.safetensors")
            self.assert_refused(message, "new", "--checkpoint", ".", self.base)
        (self.folder / "weights.safetensors").write_text("nothing")
        self.assert_refused("weights.safetensors: cannot be read as safetensors", "new", "--checkpoint", ".", self.base)
        (self.folder / "weights.safetensors").unlink()
        self.assert_refused("no weights; expected weights.safetensors", "new", "--checkpoint", ".", self.base)
        self.assert_refused("has no config.json", "new", "--checkpoint", GOLDEN.parent, self.base)

    def test_names_the_input(self):
        self.assert_inputs_refused("case 'base': FluxTransformer2DModel needs the arguments hidden_states", "{}")
        self.assert_inputs_refused("FluxTransformer2DModel failed with the arguments hidden_states: ",
                                   '{"hidden_states": {"shape": [1, 16, 4]}}')
        self.assert_inputs_refused("case 'base', argument 'hiden': FluxTransformer2DModel has no such argument; known:",
                                   '{"hiden": null}')
        self.assert_inputs_refused('an object has "shape" or "values"', '{"hidden_states": {"size": [1]}}')
        self.assert_inputs_refused("dtype 'half' is none of float32", '{"timestep": {"shape": [1], "dtype": "half"}}')
        self.assert_inputs_refused('int64 tensors need "values"', '{"timestep": {"shape": [1], "dtype": "int64"}}')
        self.assert_inputs_refused("makes no tensor", '{"timestep": {"values": [[1], [2, 3]]}}')
        self.assert_inputs_refused("of a list is neither a number, a list nor a tensor", '{"timestep": [1, "a"]}')
        self.assert_inputs_refused("is not JSON", "{")
        self.assert_inputs_refused("holds no JSON object", "[]")

    def test_names_the_source(self):
        model = ("new", "--checkpoint", GOLDEN)
        (self.folder / "given.py").write_text("def number():\n  return 3\ndef raises():\n  raise KeyError('here')\n")
        for source, message in (
            ("inputs.txt", "inputs 'inputs.txt': expected FILE.safetensors, FILE.json or module:function"),
            ("none.json", "none.json: cannot be read: No such file or directory"),
            ("none.safetensors", "none.safetensors: cannot be read as safetensors"),
            ("given.py:none", "inputs 'given.py:none': AttributeError"),
            ("given:number", "inputs 'given:number': returned 'int'; expected a dictionary"),
            ("given.py:raises", "inputs 'given.py:raises': KeyError: 'here'"),
        ):
            self.assert_refused(message, *model, f"--case=base={source}")
        self.assert_refused("case 'base': two sources give the argument", *model, self.base, self.base)
        self.assert_refused("--case 'base': expected NAME=SOURCE", *model, "--case", "base")
        self.assert_refused("case name 'config': expected letters", *model, self.base.replace("base=", "config=", 1))
        self.assert_refused("a trace of case 'other' is asked for, which is unknown; known: base", *model, self.base,
                            "--trace", "other")

    def test_overwrites_nothing(self):
        model = ("--checkpoint", GOLDEN, self.base)
        (self.folder / "here").mkdir()
        (self.folder / "there.plan.json").write_text("mine")
        self.assert_refused("here: exists already; an export is written to a new place", "here", *model)
        self.assert_refused("there.plan.json: exists already", "there", *model)
        self.assert_refused("none/new: its parent is no folder", "none/new", *model)
        self.assertEqual((self.folder / "there.plan.json").read_text(), "mine")

    def test_of_the_program_ends_with_the_status_2(self):
        result = self.started(sys.executable, EXPORTER, "new", "--config", "none.json", self.base)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr, "export_model: none.json: cannot be read: No such file or directory\n")

    def test_names_the_option(self):
        self.assert_refused("the following arguments are required: folder", "--config", "x", self.base)
        self.assert_refused("one of the arguments --config --checkpoint is required", "new", self.base)
        self.assert_refused("unrecognized arguments: --trase", "new", "--config", "x", self.base, "--trase")

    def test_says_that_the_disk_is_full(self):
        for error, message in ((OSError(28, "No space left on device"), "No space left on device"),
                               (SafetensorError("I/O error: No space left"), "I/O error: No space left")):
            with unittest.mock.patch("export_model.save_file", side_effect=error):
                self.assert_refused(f"new: cannot be written: {message}", "new", "--checkpoint", GOLDEN, self.base)

    def test_leaves_nothing_of_the_cases_that_went_well(self):
        (self.folder / "late.json").write_text('{"hidden_states": {"shape": [1, 16, 5]}}')
        self.assert_refused("case 'late': ", "new", "--checkpoint", GOLDEN, self.base, "--case=late=late.json")
        (self.folder / "nan.py").write_text(
            f"import math, sys\nfrom safetensors.torch import load_file\ndef nan():\n"
            f"  inputs = load_file('{GOLDEN}/base.inputs.safetensors')\n"
            f"  inputs['hidden_states'][0] = math.nan\n  return inputs\n")
        self.assert_refused("case 'nan': output 'sample' is not finite everywhere", "new", "--checkpoint", GOLDEN,
                            self.base, "--case=nan=nan.py:nan")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=1)
