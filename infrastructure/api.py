"""API stack: a REST API with IAM authorisation in front of one Lambda function, which is the one validator."""

import json

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_apigateway as apigateway
from constructs import Construct

from infrastructure import environment, permissions
from infrastructure.acknowledgment import acknowledge
from infrastructure.data import DataStack
from infrastructure.logs import log_group
from infrastructure.python_function import PythonFunction
from infrastructure.settings import Settings

STAGE = "v1"

ROUTES: dict[str, tuple[str, ...]] = {
    "connections": ("GET", "POST"),
    "connections/{id}": ("GET", "PATCH", "DELETE"),
    "connections/{id}/force-release": ("POST",),
    "workers": ("GET",),
    "workers/{id}/drain": ("POST",),
}
"""Path and methods. Whatever else is asked, the gateway refuses before it costs a Lambda call."""

_BODY_REQUIRED = {("connections", "POST"), ("connections/{id}", "PATCH")}
"""The gateway checks only that there is a JSON object; what is in it is the function's to judge."""

_GATEWAY_ANSWERS: dict[str, apigateway.ResponseType] = {
    "access_denied": apigateway.ResponseType.ACCESS_DENIED,
    "invalid_body": apigateway.ResponseType.BAD_REQUEST_BODY,
    "expired_token": apigateway.ResponseType.EXPIRED_TOKEN,
    "invalid_signature": apigateway.ResponseType.INVALID_SIGNATURE,
    "not_signed_or_no_such_route": apigateway.ResponseType.MISSING_AUTHENTICATION_TOKEN,
    "request_too_large": apigateway.ResponseType.REQUEST_TOO_LARGE,
    "throttled": apigateway.ResponseType.THROTTLED,
    "unavailable": apigateway.ResponseType.INTEGRATION_FAILURE,
    "timed_out": apigateway.ResponseType.INTEGRATION_TIMEOUT,
    "refused": apigateway.ResponseType.DEFAULT_4_XX,
    "internal_error": apigateway.ResponseType.DEFAULT_5_XX,
}
"""Error code of the API for what the gateway answers by itself."""


class ApiStack(Stack):
    """Gateway, function, access log."""

    def __init__(self, scope: Construct, id_: str, *, settings: Settings, data: DataStack) -> None:
        super().__init__(scope, id_, description="WebSocket fleet: HTTP API")
        self.function = PythonFunction(
            self,
            "Function",
            settings=settings,
            name="api",
            description="Validates connection requests, writes their rows, queues their assignments",
            environment=environment.common(settings, data),
            policy=permissions.api(data),
            timeout=Duration.seconds(15),
            memory_mib=1024,
        )
        self.api = self._rest_api(settings)
        integration = apigateway.LambdaIntegration(self.function, scope_permission_to_method=False)
        model = self.api.add_model(
            "Body",
            content_type="application/json",
            schema=apigateway.JsonSchema(
                schema=apigateway.JsonSchemaVersion.DRAFT4, title="Body", type=apigateway.JsonSchemaType.OBJECT
            ),
        )
        validator = self.api.add_request_validator(
            "BodyRequired", validate_request_body=True, validate_request_parameters=True
        )
        for path, methods in ROUTES.items():
            resource = self.api.root.resource_for_path(path)
            for method in methods:
                needs_body = (path, method) in _BODY_REQUIRED
                resource.add_method(
                    method,
                    integration,
                    request_models={"application/json": model} if needs_body else None,
                    request_validator=validator if needs_body else None,
                )
        for code, response_type in _GATEWAY_ANSWERS.items():
            self.api.add_gateway_response(
                f"Answer{''.join(part.capitalize() for part in code.split('_'))}",
                type=response_type,
                templates={"application/json": _error_body(code)},
            )
        CfnOutput(self, "ApiUrl", value=self.api.url)

    def _rest_api(self, settings: Settings) -> apigateway.RestApi:
        api = apigateway.RestApi(
            self,
            "Api",
            rest_api_name=settings.name,
            description="Outbound WebSocket connections",
            endpoint_types=[apigateway.EndpointType.REGIONAL],
            cloud_watch_role=settings.api_gateway_account_role,
            default_method_options=apigateway.MethodOptions(authorization_type=apigateway.AuthorizationType.IAM),
            deploy_options=apigateway.StageOptions(
                stage_name=STAGE,
                throttling_rate_limit=settings.api_rate_limit,
                throttling_burst_limit=settings.api_burst_limit,
                access_log_destination=apigateway.LogGroupLogDestination(log_group(self, "AccessLogs", settings)),
                access_log_format=_access_log_format(),
            ),
        )
        acknowledge(
            api, "COG4", "Callers are AWS principals: IAM authorises signed requests, so there is no user pool."
        )
        acknowledge(api, "APIG3", "Unsigned requests end at the gateway; an account that wants a web ACL attaches it.")
        acknowledge(
            api,
            "APIG6",
            "The access log carries every error. Execution logs can quote requests, which hold header values.",
        )
        if settings.api_gateway_account_role:
            acknowledge(
                api,
                "IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs]",
                "The account-wide role that API Gateway asks for, with the policy that AWS maintains for it.",
            )
        return api


def _error_body(code: str) -> str:
    """The API's error shape. `messageString` is the gateway's message, already quoted as JSON."""
    return f'{{"error":{{"code":"{code}","message":$context.error.messageString}}}}'


def _access_log_format() -> apigateway.AccessLogFormat:
    """One JSON object per request: who, which route, how it went. Neither path values nor queries nor headers."""
    return apigateway.AccessLogFormat.custom(
        json.dumps(
            {
                "requestId": "$context.requestId",
                "time": "$context.requestTime",
                "caller": "$context.identity.userArn",
                "sourceIp": "$context.identity.sourceIp",
                "method": "$context.httpMethod",
                "route": "$context.resourcePath",
                "status": "$context.status",
                "error": "$context.error.responseType",
                "latencyMilliseconds": "$context.responseLatency",
                "functionMilliseconds": "$context.integration.latency",
                "functionError": "$context.integration.error",
            },
            separators=(",", ":"),
        )
    )
