"""REST of accounts: projects, members, tokens, the caller."""

from typing import cast

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts import selectors, services
from apps.accounts.api import serializers
from apps.accounts.models import ApiToken, Membership, Project, User
from apps.accounts.permissions import Permission, find_project, not_found, visible_projects
from ratchet.bodies import read_body
from ratchet.endpoints import Endpoint, ListEndpoint
from ratchet.problems import Problem


def caller(request: Request) -> User:
    """Who asks; the default permission class has turned anonymous callers away."""
    return cast(User, request.user)


class ProjectList(ListEndpoint[Project]):
    serializer_class = serializers.ProjectSerializer
    queryset = Project.objects.none()

    def get_queryset(self) -> QuerySet[Project]:
        return visible_projects(caller(self.request))

    @extend_schema(request=serializers.ProjectSerializer, responses={201: serializers.ProjectSerializer})
    def post(self, request: Request) -> Response:
        """Make a project. Superusers only."""
        values = read_body(request, serializers.ProjectSerializer)
        project = services.create_project(slug=values["slug"], title=values.get("title", ""), by=caller(request))
        location = f"/api/v1/projects/{project.slug}/"
        return Response(serializers.ProjectSerializer(project).data, status=201, headers={"Location": location})


class ProjectDetail(Endpoint):
    @extend_schema(responses=serializers.ProjectSerializer)
    def get(self, request: Request, slug: str) -> Response:
        return Response(serializers.ProjectSerializer(find_project(request.user, slug)).data)


class MemberList(ListEndpoint[Membership]):
    serializer_class = serializers.MembershipSerializer
    queryset = Membership.objects.none()

    def get_queryset(self) -> QuerySet[Membership]:
        user = caller(self.request)
        return selectors.members_of(user, find_project(user, self.kwargs["slug"]))

    @extend_schema(request=serializers.MembershipSerializer, responses={201: serializers.MembershipSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Give a user a role in the project."""
        project = find_project(request.user, slug, Permission.MEMBER_MANAGE)
        values = read_body(request, serializers.MembershipSerializer)
        username = values["user"]["username"]
        user = User.objects.filter(username=username).first()
        if user is None:
            raise Problem(
                "unknown_user", 400, f"There is no user {username!r}.", [{"path": "username", "message": "is unknown"}]
            )
        member = services.add_member(project=project, user=user, role=values["role"], by=caller(request))
        return Response(serializers.MembershipSerializer(member).data, status=status.HTTP_201_CREATED)


class MemberDetail(Endpoint):
    @extend_schema(request=serializers.RoleSerializer, responses=serializers.MembershipSerializer)
    def put(self, request: Request, slug: str, username: str) -> Response:
        """Change a member's role."""
        member = self._member(request, slug, username)
        values = read_body(request, serializers.RoleSerializer)
        member = services.add_member(project=member.project, user=member.user, role=values["role"], by=caller(request))
        return Response(serializers.MembershipSerializer(member).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, username: str) -> Response:
        """Take a member out of the project."""
        services.remove_member(membership=self._member(request, slug, username), by=caller(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @staticmethod
    def _member(request: Request, slug: str, username: str) -> Membership:
        project = find_project(request.user, slug, Permission.MEMBER_MANAGE)
        return selectors.find_member(request.user, project, username)


class TokenList(ListEndpoint[ApiToken]):
    serializer_class = serializers.TokenSerializer
    queryset = ApiToken.objects.none()

    def get_queryset(self) -> QuerySet[ApiToken]:
        return selectors.tokens_of(caller(self.request))

    @extend_schema(request=serializers.TokenCreateSerializer, responses={201: serializers.IssuedTokenSerializer})
    def post(self, request: Request) -> Response:
        """Issue a token for yourself. It takes no Idempotency-Key: a kept answer would keep the secret."""
        values = read_body(request, serializers.TokenCreateSerializer)
        user = caller(request)
        project = find_project(user, values["project"]) if values.get("project") else None
        issued = services.issue_token(
            user=user, name=values["name"], by=user, project=project, scopes=values["scopes"], days=values["days"]
        )
        body = {**serializers.TokenSerializer(issued.token).data, "token": issued.secret}
        location = f"/api/v1/tokens/{issued.token.pk}/"
        return Response(body, status=status.HTTP_201_CREATED, headers={"Location": location})


class TokenDetail(Endpoint):
    @extend_schema(responses=serializers.TokenSerializer)
    def get(self, request: Request, pk: str) -> Response:
        return Response(serializers.TokenSerializer(self._token(request, pk)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, pk: str) -> Response:
        """Revoke the token; gateways refuse it at once."""
        services.revoke_token(token=self._token(request, pk), by=caller(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @staticmethod
    def _token(request: Request, pk: str) -> ApiToken:
        token = selectors.tokens_of(caller(request)).filter(pk=pk).first()
        if token is None:
            raise not_found()
        return token


class Me(Endpoint):
    @extend_schema(responses=serializers.MeSerializer)
    def get(self, request: Request) -> Response:
        """Who the token or session belongs to, and what they may do where."""
        user = caller(request)
        projects = serializers.MemberOfSerializer(visible_projects(user), many=True, context={"request": request}).data
        values = {name: getattr(user, name) for name in ("id", "username", "email", "is_superuser")}
        return Response({**values, "projects": projects})
