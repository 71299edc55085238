"""The whole application: four stacks, in the order in which they depend on each other."""

from dataclasses import dataclass

from aws_cdk import App, Tags

from infrastructure import settings as settings_module
from infrastructure.api import ApiStack
from infrastructure.data import DataStack
from infrastructure.fleet import FleetStack
from infrastructure.observability import ObservabilityStack
from infrastructure.settings import Settings


@dataclass(frozen=True, slots=True)
class Application:
    """The stacks of one deployment."""

    settings: Settings
    data: DataStack
    api: ApiStack
    fleet: FleetStack
    observability: ObservabilityStack


def build(app: App) -> Application:
    """Define all stacks in `app`; raises SettingsError if its context is not a legal deployment."""
    settings = settings_module.load(app.node.get_all_context())
    name = settings.name
    data = DataStack(app, f"{name}-data", settings=settings)
    api = ApiStack(app, f"{name}-api", settings=settings, data=data)
    fleet = FleetStack(app, f"{name}-fleet", settings=settings, data=data)
    observability = ObservabilityStack(app, f"{name}-observability", settings=settings, data=data, api=api, fleet=fleet)
    Tags.of(app).add("application", name)
    return Application(settings, data, api, fleet, observability)
