"""API stack: exactly the routes of the contract, signed, throttled, logged without secrets, one error shape."""

import json

import pytest

from tests.infrastructure.conftest import Assembly, Properties, Synthesize

Routes = dict[tuple[str, str], Properties]

ROUTES = {
    ("GET", "/connections"),
    ("POST", "/connections"),
    ("GET", "/connections/{id}"),
    ("PATCH", "/connections/{id}"),
    ("DELETE", "/connections/{id}"),
    ("POST", "/connections/{id}/force-release"),
    ("GET", "/workers"),
    ("POST", "/workers/{id}/drain"),
}


@pytest.fixture(scope="module")
def routes(assembly: Assembly) -> Routes:
    parts = {
        one.logical_id: (one.properties["ParentId"].get("Ref"), one.properties["PathPart"])
        for one in assembly.of("AWS::ApiGateway::Resource")
    }

    def path(resource: str) -> str:
        parent, part = parts[resource]
        return (path(parent) if parent in parts else "") + f"/{part}"

    return {
        (method.properties["HttpMethod"], path(method.properties["ResourceId"]["Ref"])): method.properties
        for method in assembly.of("AWS::ApiGateway::Method")
    }


def test_the_routes_are_those_of_the_contract(routes: Routes) -> None:
    assert routes.keys() == ROUTES


def test_every_route_is_signed_and_ends_at_the_one_function(routes: Routes, assembly: Assembly) -> None:
    assert {method["AuthorizationType"] for method in routes.values()} == {"AWS_IAM"}
    (function,) = assembly.of("AWS::Lambda::Function", stack="api")
    for method in routes.values():
        assert method["Integration"]["Type"] == "AWS_PROXY"
        assert function.logical_id in json.dumps(method["Integration"]["Uri"])


def test_routes_that_need_a_body_are_refused_without_one(routes: Routes, assembly: Assembly) -> None:
    with_body = {route for route, method in routes.items() if "RequestValidatorId" in method}
    assert with_body == {("POST", "/connections"), ("PATCH", "/connections/{id}")}
    assert assembly.one("AWS::ApiGateway::RequestValidator").properties["ValidateRequestBody"] is True
    assert assembly.one("AWS::ApiGateway::Model").properties["Schema"]["type"] == "object"


def test_only_this_api_may_invoke_the_function(assembly: Assembly) -> None:
    permission = assembly.one("AWS::Lambda::Permission", stack="api").properties
    assert permission["Principal"] == "apigateway.amazonaws.com"
    assert assembly.one("AWS::ApiGateway::RestApi").logical_id in json.dumps(permission["SourceArn"])


def test_the_stage_is_throttled(assembly: Assembly) -> None:
    (settings,) = assembly.one("AWS::ApiGateway::Stage").properties["MethodSettings"]
    assert (settings["HttpMethod"], settings["ResourcePath"]) == ("*", "/*")
    assert settings["ThrottlingRateLimit"] == 200
    assert settings["ThrottlingBurstLimit"] == 400
    assert not settings["DataTraceEnabled"]


def test_the_access_log_is_json_and_holds_no_query_header_or_body(assembly: Assembly) -> None:
    line = json.loads(assembly.one("AWS::ApiGateway::Stage").properties["AccessLogSetting"]["Format"])
    assert {"requestId", "caller", "method", "route", "status", "error", "latencyMilliseconds"} <= line.keys()
    assert line["route"] == "$context.resourcePath"
    logged = json.dumps(line)
    assert not any(word in logged for word in ("querystring", "header", "$input", "context.path", "authorizer"))


def test_what_the_gateway_answers_itself_has_the_shape_of_the_api(assembly: Assembly) -> None:
    answers = assembly.of("AWS::ApiGateway::GatewayResponse")
    assert {"DEFAULT_4XX", "DEFAULT_5XX", "THROTTLED", "ACCESS_DENIED", "BAD_REQUEST_BODY"} <= {
        answer.properties["ResponseType"] for answer in answers
    }
    for answer in answers:
        body = answer.properties["ResponseTemplates"]["application/json"]
        # The gateway puts a JSON string in place of this variable.
        error = json.loads(body.replace("$context.error.messageString", '"text"'))["error"]
        assert error.keys() == {"code", "message"}
        assert error["code"] == error["code"].lower()


def test_the_account_wide_role_can_be_left_to_somebody_else(assembly: Assembly, synthesize: Synthesize) -> None:
    assembly.one("AWS::ApiGateway::Account")
    without = synthesize(apiGatewayAccountRole=False)
    assert not [one for one in without.all() if one.type == "AWS::ApiGateway::Account"]
