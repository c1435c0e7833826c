"""URLs of the pages of webhooks."""

from django.urls import path

from apps.webhooks import views

urlpatterns = [
    path("projects/<slug:slug>/webhooks/", views.webhooks, name="webhooks"),
    path("webhooks/<uuid:pk>/", views.webhook, name="webhook"),
    path("webhook-deliveries/<uuid:pk>/", views.delivery, name="webhook-delivery"),
]
