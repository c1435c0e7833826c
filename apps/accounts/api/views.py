"""REST of accounts: projects, members, tokens, the caller."""

from typing import cast

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts import invitations, selectors, services
from apps.accounts.api import serializers
from apps.accounts.models import ApiToken, Invitation, Membership, Project, User
from apps.accounts.permissions import Permission, find_project, not_found, visible_projects
from apps.accounts.throttles import allowed, seconds_left
from ratchet.bodies import read_body
from ratchet.endpoints import IF_MATCH, KEEPS_NO_ANSWER, Endpoint, ListEndpoint, require_match
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

    @extend_schema(
        parameters=[IF_MATCH], request=serializers.ProjectTitleSerializer, responses=serializers.ProjectSerializer
    )
    @transaction.atomic
    def patch(self, request: Request, slug: str) -> Response:
        """Give the project another title. The slug stays: addresses and specs name it."""
        project = find_project(request.user, slug, Permission.PROJECT_UPDATE)
        values = read_body(request, serializers.ProjectTitleSerializer)
        project = services.lock_project(project)
        require_match(request, serializers.ProjectSerializer(project).data)
        project = services.rename_project(project=project, title=values["title"], by=caller(request))
        return Response(serializers.ProjectSerializer(project).data)


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
            detail = (
                f"There is no user {username!r}. Who has no account yet joins by an invitation: "
                f"POST /api/v1/projects/{slug}/invitations/, or the project's page People."
            )
            raise Problem("unknown_user", 400, detail, [{"path": "username", "message": "is unknown"}])
        member = services.add_member(project=project, user=user, role=values["role"], by=caller(request))
        return Response(serializers.MembershipSerializer(member).data, status=status.HTTP_201_CREATED)


class MemberDetail(Endpoint):
    @extend_schema(responses=serializers.MembershipSerializer)
    def get(self, request: Request, slug: str, username: str) -> Response:
        """One member with the role they hold."""
        member = selectors.find_member(request.user, find_project(request.user, slug), username)
        return Response(serializers.MembershipSerializer(member).data)

    @extend_schema(
        parameters=[IF_MATCH], request=serializers.RoleSerializer, responses=serializers.MembershipSerializer
    )
    @transaction.atomic
    def put(self, request: Request, slug: str, username: str) -> Response:
        """Change a member's role."""
        member = self._member(request, slug, username)
        values = read_body(request, serializers.RoleSerializer)
        services.lock_project(member.project)
        member = self._member(request, slug, username)  # as it is now
        require_match(request, serializers.MembershipSerializer(member).data)
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


class InvitationList(ListEndpoint[Invitation]):
    """Invitations into the project, newest first."""

    serializer_class = serializers.InvitationSerializer
    queryset = Invitation.objects.none()
    keeps_answers = False  # the link is shown once

    def get_queryset(self) -> QuerySet[Invitation]:
        user = caller(self.request)
        return selectors.invitations_of(user, find_project(user, self.kwargs["slug"]))

    @extend_schema(
        request=serializers.InvitationCreateSerializer,
        responses={201: serializers.SentInvitationSerializer},
        extensions=KEEPS_NO_ANSWER,
    )
    def post(self, request: Request, slug: str) -> Response:
        """Make a link that gives its holder a role here. It takes no Idempotency-Key: a kept answer would keep it."""
        project = find_project(request.user, slug, Permission.MEMBER_MANAGE)
        values = read_body(request, serializers.InvitationCreateSerializer)
        sent = invitations.invite(project=project, by=caller(request), **values)
        body = serializers.InvitationSerializer(sent.invitation).data
        location = f"/api/v1/projects/{slug}/invitations/{sent.invitation.pk}/"
        return Response({**body, "url": settings.PUBLIC_URL + sent.path}, status=201, headers={"Location": location})


class InvitationDetail(Endpoint):
    @extend_schema(responses=serializers.InvitationSerializer)
    def get(self, request: Request, slug: str, pk: str) -> Response:
        return Response(serializers.InvitationSerializer(self._invitation(request, slug, pk)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, pk: str) -> Response:
        """Take the link back; whoever joined by it stays."""
        invitations.revoke_invitation(invitation=self._invitation(request, slug, pk), by=caller(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @staticmethod
    def _invitation(request: Request, slug: str, pk: str) -> Invitation:
        return selectors.find_invitation(request.user, find_project(request.user, slug), pk)


class InvitationAccept(Endpoint):
    @extend_schema(request=serializers.AcceptSerializer, responses={201: serializers.MembershipSerializer})
    def post(self, request: Request) -> Response:
        """Join a project by an invitation's link, with the account that asks."""
        values = read_body(request, serializers.AcceptSerializer)
        invitation = invitations.find_open(values["secret"])
        if invitation is None or caller(request).token_project_id or caller(request).token_scopes:
            raise not_found()
        member = invitations.accept_invitation(invitation=invitation, by=caller(request))
        return Response(serializers.MembershipSerializer(member).data, status=201)


class TokenList(ListEndpoint[ApiToken]):
    serializer_class = serializers.TokenSerializer
    queryset = ApiToken.objects.none()
    keeps_answers = False  # the secret is shown once

    def get_queryset(self) -> QuerySet[ApiToken]:
        return selectors.tokens_of(caller(self.request))

    @extend_schema(
        request=serializers.TokenCreateSerializer,
        responses={201: serializers.IssuedTokenSerializer},
        extensions=KEEPS_NO_ANSWER,
    )
    def post(self, request: Request) -> Response:
        """Issue a token for yourself. It takes no Idempotency-Key: a kept answer would keep the secret."""
        values = read_body(request, serializers.TokenCreateSerializer)
        user = caller(request)
        if not allowed("token", f"user {user.pk}"):
            raise Throttled(wait=seconds_left())
        project = find_project(user, values.pop("project")) if values.get("project") else None
        issued = services.issue_token(user=user, by=user, **{**values, "project": project})
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
