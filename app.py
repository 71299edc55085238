"""Entry point of the CDK: `cdk deploy --all`, or `python app.py` to write the templates without the CLI."""

import json
import sys
from pathlib import Path

from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks

from infrastructure.application import build
from infrastructure.settings import SettingsError

# Read here and not only by the CLI, so that every way to run this file makes the same templates. What the CLI was
# given with -c has precedence.
app = App(context=json.loads(Path(__file__).with_name("cdk.json").read_text())["context"])
Validations.of(app).add_plugins(AwsSolutionsChecks(app))
try:
    build(app)
except SettingsError as error:
    sys.exit(f"Nothing was synthesized: {error}")
app.synth()
