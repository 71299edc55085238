"""The one module that changes the template for the emulator."""

from typing import Any

import pytest

from local.bridges import LEFT_OUT, DanglingReferenceError, bridge, set_environment


def template(**resources: dict[str, Any]) -> dict[str, Any]:
    return {"Resources": resources}


@pytest.mark.parametrize("kind", sorted(LEFT_OUT))
def test_a_kind_that_the_emulator_lacks_is_left_out_with_what_only_orders_or_shows_it(kind: str) -> None:
    bridged = bridge(
        {
            "Resources": {
                "Gone": {"Type": kind},
                "Kept": {"Type": "AWS::SQS::Queue", "DependsOn": ["Gone", "Other"]},
                "Other": {"Type": "AWS::SQS::Queue", "DependsOn": "Gone"},
            },
            "Outputs": {"Gone": {"Value": {"Ref": "Gone"}}, "Kept": {"Value": {"Fn::GetAtt": ["Kept", "Arn"]}}},
        }
    )

    assert bridged["Resources"] == {
        "Kept": {"Type": "AWS::SQS::Queue", "DependsOn": ["Other"]},
        "Other": {"Type": "AWS::SQS::Queue", "DependsOn": []},
    }
    assert bridged["Outputs"].keys() == {"Kept"}


def test_alarms_on_metric_math_are_left_out_and_others_kept() -> None:
    bridged = bridge(
        template(
            Math={"Type": "AWS::CloudWatch::Alarm", "Properties": {"Metrics": []}},
            Plain={"Type": "AWS::CloudWatch::Alarm", "Properties": {"MetricName": "m"}},
        )
    )

    assert bridged["Resources"].keys() == {"Plain"}


def test_functions_lose_their_layers_and_nothing_else() -> None:
    function = {"Type": "AWS::Lambda::Function", "Properties": {"Layers": [{"Ref": "Layer"}], "Timeout": 3}}

    bridged = bridge(template(Function=function, Layer={"Type": "AWS::Lambda::LayerVersion"}))

    assert bridged["Resources"] == {"Function": {"Type": "AWS::Lambda::Function", "Properties": {"Timeout": 3}}}


@pytest.mark.parametrize("reference", [{"Ref": "Gone"}, {"Fn::GetAtt": ["Gone", "Arn"]}])
def test_what_needs_something_left_out_is_refused_by_name(reference: dict[str, Any]) -> None:
    broken = template(
        Gone={"Type": "AWS::EC2::FlowLog"},
        Needs={"Type": "AWS::SQS::Queue", "Properties": {"Deep": [{"Fn::Join": ["", [reference]]}]}},
    )

    with pytest.raises(DanglingReferenceError, match=r"Needs \(AWS::SQS::Queue\) needs Gone"):
        bridge(broken)


def test_settings_replace_values_where_the_name_is_in_the_environment() -> None:
    before = template(
        Function={"Type": "AWS::Lambda::Function", "Properties": {"Environment": {"Variables": {"A": "1", "B": "2"}}}},
        Task={
            "Type": "AWS::ECS::TaskDefinition",
            "Properties": {"ContainerDefinitions": [{"Environment": [{"Name": "A", "Value": "1"}]}]},
        },
    )

    after, found = set_environment(before, {"A": "9", "C": "9", "WORKER_C": "9"})

    assert found == {"A", "WORKER_C"}
    assert after["Resources"]["Function"]["Properties"]["Environment"]["Variables"] == {"A": "9", "B": "2"}
    assert after["Resources"]["Task"]["Properties"]["ContainerDefinitions"][0]["Environment"] == [
        {"Name": "A", "Value": "9"},
        {"Name": "WORKER_C", "Value": "9"},
    ]
    assert before["Resources"]["Function"]["Properties"]["Environment"]["Variables"]["A"] == "1"
