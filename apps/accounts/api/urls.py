"""URLs of accounts below /api/v1/."""

from django.urls import path

from apps.accounts.api import views

urlpatterns = [
    path("me/", views.Me.as_view(), name="api-me"),
    path("projects/", views.ProjectList.as_view(), name="api-projects"),
    path("projects/<slug:slug>/", views.ProjectDetail.as_view(), name="api-project"),
    path("projects/<slug:slug>/members/", views.MemberList.as_view(), name="api-members"),
    path("projects/<slug:slug>/members/<str:username>/", views.MemberDetail.as_view(), name="api-member"),
    path("projects/<slug:slug>/invitations/", views.InvitationList.as_view(), name="api-invitations"),
    path("projects/<slug:slug>/invitations/<uuid:pk>/", views.InvitationDetail.as_view(), name="api-invitation"),
    path("invitations/accept/", views.InvitationAccept.as_view(), name="api-invitation-accept"),
    path("tokens/", views.TokenList.as_view(), name="api-tokens"),
    path("tokens/<uuid:pk>/", views.TokenDetail.as_view(), name="api-token"),
]
