"""URLs of sign-in, of account pages and of a project's people."""

from allauth.socialaccount.providers.openid_connect.urls import urlpatterns as oidc_urls
from django.contrib.auth.views import LogoutView
from django.urls import include, path

from apps.accounts import project_views, views

urlpatterns = [
    path("accounts/login/", views.SignIn.as_view(), name="login"),
    path("accounts/logout/", LogoutView.as_view(), name="logout"),
    path("accounts/", include(oidc_urls)),
    path("account/", views.account, name="account"),
    path("account/password/", views.ChangePassword.as_view(), name="password"),
    path("account/tokens/<uuid:pk>/revoke/", views.revoke, name="revoke-token"),
    path("projects/<slug:slug>/people/", project_views.people, name="people"),
    path("projects/<slug:slug>/people/<str:username>/", project_views.change_member, name="change-member"),
    path(
        "projects/<slug:slug>/invitations/<uuid:pk>/revoke/", project_views.revoke_invitation, name="revoke-invitation"
    ),
    path("invitations/<str:secret>/", project_views.invitation, name="invitation"),
]
