"""The network of the workers: a way out, no way in."""

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infrastructure.logs import log_group
from infrastructure.settings import NetworkMode, Settings


class Network(Construct):
    """A VPC in two zones whose tasks may call anywhere and be called from nowhere.

    Public subnets are the default since traffic that comes in over a NAT gateway is billed by the gigabyte, and what
    this fleet does is receive. DynamoDB and S3 (image layers) are reached by gateway endpoints, which cost nothing.
    """

    def __init__(self, scope: Construct, id_: str, *, settings: Settings) -> None:
        super().__init__(scope, id_)
        behind_nat = settings.network is NetworkMode.NAT
        public = ec2.SubnetConfiguration(
            name="Public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=22, map_public_ip_on_launch=False
        )
        private = ec2.SubnetConfiguration(name="Private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, cidr_mask=20)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            max_azs=2,
            nat_gateways=2 if behind_nat else 0,
            subnet_configuration=[public, private] if behind_nat else [public],
            # Nothing is placed in the default security group; emptying it would need a custom resource.
            restrict_default_security_group=False,
            gateway_endpoints={
                "DynamoDb": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.DYNAMODB),
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
            },
        )
        self.vpc.add_flow_log(
            "RefusedTraffic",
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(log_group(self, "FlowLogs", settings)),
            traffic_type=ec2.FlowLogTrafficType.REJECT,
        )
        self.security_group = ec2.SecurityGroup(
            self,
            "WorkerSecurityGroup",
            vpc=self.vpc,
            description="Workers: any connection out, none in",
            allow_all_outbound=True,
        )
        self.assign_public_ip = not behind_nat
        self.subnets = ec2.SubnetSelection(
            subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS if behind_nat else ec2.SubnetType.PUBLIC
        )
