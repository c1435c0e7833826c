"""URLs of sign-in and account pages."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from apps.accounts import views

urlpatterns = [
    path("accounts/login/", views.SignIn.as_view(), name="login"),
    path("accounts/logout/", LogoutView.as_view(), name="logout"),
    path("account/", views.account, name="account"),
    path("account/tokens/<uuid:pk>/revoke/", views.revoke, name="revoke-token"),
]
